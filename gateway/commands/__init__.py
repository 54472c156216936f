"""The commands of `gateway`, a module a family.  Nothing slow is imported before a command runs."""
