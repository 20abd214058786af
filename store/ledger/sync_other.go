//go:build !linux

package ledger

import "os"

// syncData makes the content of f durable.
func syncData(f *os.File) error { return f.Sync() }
