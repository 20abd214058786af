package config

import (
	"cmp"
	"errors"
	"path/filepath"
)

// Paths holds the three paths of a node on a machine.
type Paths struct {
	Dir    string `json:"dir" doc:"the node's folder: keys, store, bodies"`
	File   string `json:"config"`
	Socket string `json:"socket"`
	// Named reports whether File was given explicitly: then it must exist.
	Named bool `json:"-"`
}

// A Machine describes the environment that the paths depend on.
type Machine struct {
	Env    func(name string) string
	Root   bool                   // use the system's paths, not the user's
	Home   string                 // home directory of the user
	Exists func(path string) bool // called for the identity and sockets only
}

const (
	fileName   = "config.yaml"
	socketName = "node.sock"
	systemSock = "/run/balefire/node.sock"
)

// Locate returns the paths of a node. Flags take precedence, then BALEFIRE_DIR,
// BALEFIRE_CONFIG and BALEFIRE_SOCKET, then the variables of a service manager,
// then the conventions of the system. An explicit folder contains all three, so
// --dir alone is enough to run two nodes on one machine.
func Locate(m Machine, flags Paths) (Paths, error) {
	p := Paths{Dir: cmp.Or(flags.Dir, m.Env("BALEFIRE_DIR")), File: cmp.Or(flags.File, m.Env("BALEFIRE_CONFIG")), Socket: cmp.Or(flags.Socket, m.Env("BALEFIRE_SOCKET"))}
	named := p.Dir
	p.Named = p.File != ""
	p.Dir = cmp.Or(p.Dir, m.Env("STATE_DIRECTORY"), m.system("/var/lib/balefire"), m.user("XDG_STATE_HOME", ".local/state"))
	if p.Dir == "" {
		return Paths{}, errors.New("no location for the node's folder: this user has no home directory; name a folder with --dir or BALEFIRE_DIR")
	}
	var err error
	if p.Dir, err = filepath.Abs(p.Dir); err != nil {
		return Paths{}, err
	}
	if named != "" {
		named = p.Dir
	}
	p.File = cmp.Or(p.File, join(named, fileName), join(m.Env("CONFIGURATION_DIRECTORY"), fileName),
		m.system("/etc/balefire/config.yaml"), join(m.user("XDG_CONFIG_HOME", ".config"), fileName), join(p.Dir, fileName))
	if p.Socket == "" {
		p.Socket = m.socket(named, p.Dir)
	}
	return p, nil
}

// socket returns the default path of the socket. For a user without a node of
// their own it is the socket of the system's node.
func (m Machine) socket(named, dir string) string {
	own := cmp.Or(join(named, socketName), join(m.Env("RUNTIME_DIRECTORY"), socketName), m.system(systemSock))
	if own != "" {
		return own
	}
	own = join(dir, socketName)
	if run := m.Env("XDG_RUNTIME_DIR"); run != "" {
		own = filepath.Join(run, "balefire", socketName)
	}
	if m.Exists != nil && !m.Exists(own) && !m.Exists(join(dir, "identity")) && m.Exists(systemSock) {
		return systemSock
	}
	return own
}

func (m Machine) system(path string) string {
	if m.Root {
		return path
	}
	return ""
}

func (m Machine) user(variable, subdir string) string {
	if base := m.Env(variable); filepath.IsAbs(base) {
		return filepath.Join(base, "balefire")
	}
	if m.Home == "" {
		return ""
	}
	return filepath.Join(m.Home, subdir, "balefire")
}

// join is filepath.Join, except that an empty dir yields an empty path.
func join(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}
