// Package arch has tests of the structure of the code: the layers of packages, the owners
// of libraries, limits of size, who may hold the node or a context, who waits for a
// goroutine, and words that are no longer used. docs/architecture.md shows the layers. It has
// no code of its own.
package arch
