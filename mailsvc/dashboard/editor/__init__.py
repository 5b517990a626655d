"""The page on which a draft of a broadcast is written. Its script: etc/editor. Lists, review and sending are elsewhere."""
