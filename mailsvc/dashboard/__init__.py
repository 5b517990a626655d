"""The dashboard: one module per section, on the same store and intake as the API. assembly.py puts the sections together."""
