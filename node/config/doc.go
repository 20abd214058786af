// Package config reads what a person wrote about a node, refuses what it does
// not understand, with the line, and tells for every value where it comes from.
//
//	defaults ◀── config.yaml ◀── conf.d/*.yaml ◀── BALEFIRE_… environment
//	   │              the later one wins, setting by setting
//	   └──▶ Validate ──▶ node.Config
//
// A setting has one name everywhere: net.listen in words, listen below net in
// the file, BALEFIRE_NET_LISTEN in the environment. docs/configuration.md is
// written from the struct in this package, so it cannot say anything else.
package config
