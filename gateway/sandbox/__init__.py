"""Everything beneath the sandbox supervisor: image, limits, filter, launcher, artifacts."""
