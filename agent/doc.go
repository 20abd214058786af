// Package agent has the handlers that a node brings along, and what handlers share: an
// [Output] that is kept in memory or in a file, within its limits.
package agent
