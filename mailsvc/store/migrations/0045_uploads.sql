-- Files with contacts whose columns are chosen on a page before the import begins. The previous release does not look at them.
-- depends: 0044_operator_access

-- A fifth status: `uploaded`, the file is stored and nothing is done with it yet.
ALTER TABLE contact_imports DROP CONSTRAINT contact_imports_status_check;
ALTER TABLE contact_imports ADD CONSTRAINT contact_imports_status_check
    CHECK (status IN ('uploaded', 'queued', 'in_progress', 'completed', 'failed'));
CREATE INDEX contact_imports_uploaded ON contact_imports (created_at) WHERE status = 'uploaded';
