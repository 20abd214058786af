// Package wire has what a program and a node say to each other over the API: requests,
// views and errors. It imports the standard library alone, so that a program that only
// talks to a node stays small.
package wire
