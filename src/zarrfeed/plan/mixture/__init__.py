"""How several sources take turns: whose sample comes at which step."""
