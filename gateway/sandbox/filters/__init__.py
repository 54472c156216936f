"""The system-call filters as they ship: programs, their digests, and the policy they are made of."""
