"""The local world of `gateway demo`: chain, token, facilitator, upstreams, faults and a paying agent."""
