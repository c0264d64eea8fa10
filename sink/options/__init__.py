"""Everything that a user can ask for, and how it is checked."""
