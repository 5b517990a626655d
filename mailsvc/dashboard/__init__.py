"""THE PAGES: one file per area, over the same store and intake that the API uses. Put together in context and pages."""
