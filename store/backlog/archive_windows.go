package backlog

// syncDir does nothing: NTFS journals the entries of a folder.
func syncDir(string) error { return nil }
