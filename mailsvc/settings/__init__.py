"""Every setting: what there is (schema), how it is read and checked, and what is passed to each part of the daemon."""
