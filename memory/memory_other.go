//go:build !linux && !darwin

package memory

// Available returns the limit of this process.
func Available() Limit { return Limit{} }
