// Package config reads the configuration of a node, rejects what it does not
// understand with file and line, and reports the source of each value.
//
//	defaults ◀── config.yaml ◀── conf.d/*.yaml ◀── BALEFIRE_… environment
//	   │              the later source wins, setting by setting
//	   └──▶ Validate ──▶ node.Config
//
// A setting has one name everywhere: net.listen in text, listen under net in
// the file, BALEFIRE_NET_LISTEN in the environment. Package settings describes
// those of the node; docs/configuration.md is generated from its structs and the
// ones here, so that they cannot differ.
package config
