"""The home page: the steps to a first email, the figures of a week, what needs attention."""
