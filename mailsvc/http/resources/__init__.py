"""The API's endpoints: one file per collection, with what its requests and responses look like."""
