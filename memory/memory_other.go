//go:build !linux && !darwin

package memory

func available() Limit { return Limit{} }
