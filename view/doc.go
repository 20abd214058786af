// Package view answers what a node knows: its tasks and their results, its peers and the
// paths to them, the members of the mesh, its store. It only reads: no answer changes
// anything, and only [Views.Wait] and [Views.Ping] wait.
package view
