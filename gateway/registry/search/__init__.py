"""The search family: its request, the adapters of its engines, the embedded index, and what an answer holds."""
