"""The starters as they ship: a program for each architecture, their digests, and the sources they are made of."""
