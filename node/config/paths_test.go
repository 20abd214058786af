package config

import (
	"testing"
)

func TestLocate(t *testing.T) {
	user := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}
	tests := []struct {
		name   string
		root   bool
		home   string
		env    map[string]string
		flags  Paths
		exists string
		want   Paths
	}{
		{"root", true, "/root", nil, Paths{}, "", Paths{Dir: "/var/lib/balefire", File: "/etc/balefire/config.yaml", Socket: "/run/balefire/node.sock"}},
		{"user", false, "/home/u", user, Paths{}, "", Paths{Dir: "/home/u/.local/state/balefire", File: "/home/u/.config/balefire/config.yaml", Socket: "/run/user/7/balefire/node.sock"}},
		{"user with XDG directories", false, "/home/u", map[string]string{"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}, Paths{}, "",
			Paths{Dir: "/s/balefire", File: "/c/balefire/config.yaml", Socket: "/s/balefire/node.sock"}},
		{"relative XDG directory is ignored", false, "/home/u", map[string]string{"XDG_STATE_HOME": "s"}, Paths{}, "",
			Paths{Dir: "/home/u/.local/state/balefire", File: "/home/u/.config/balefire/config.yaml", Socket: "/home/u/.local/state/balefire/node.sock"}},
		{"user of the system's node", false, "/home/u", user, Paths{}, "/run/balefire/node.sock",
			Paths{Dir: "/home/u/.local/state/balefire", File: "/home/u/.config/balefire/config.yaml", Socket: "/run/balefire/node.sock"}},
		{"service", true, "", map[string]string{"STATE_DIRECTORY": "/var/lib/b", "RUNTIME_DIRECTORY": "/run/b", "CONFIGURATION_DIRECTORY": "/etc/b"}, Paths{}, "",
			Paths{Dir: "/var/lib/b", File: "/etc/b/config.yaml", Socket: "/run/b/node.sock"}},
		{"an explicit folder contains everything", true, "/root", map[string]string{"RUNTIME_DIRECTORY": "/run/b"}, Paths{Dir: "/two"}, "",
			Paths{Dir: "/two", File: "/two/config.yaml", Socket: "/two/node.sock"}},
		{"a folder from the environment", false, "", map[string]string{"BALEFIRE_DIR": "/data"}, Paths{}, "",
			Paths{Dir: "/data", File: "/data/config.yaml", Socket: "/data/node.sock"}},
		{"flags win", false, "/home/u", map[string]string{"BALEFIRE_DIR": "/data", "BALEFIRE_CONFIG": "/e.yaml", "BALEFIRE_SOCKET": "/e.sock"},
			Paths{Dir: "/f", File: "/f.yaml", Socket: "/f.sock"}, "", Paths{Dir: "/f", File: "/f.yaml", Socket: "/f.sock", Named: true}},
		{"file and socket from the environment", false, "/home/u", map[string]string{"BALEFIRE_CONFIG": "/e.yaml", "BALEFIRE_SOCKET": "/e.sock"}, Paths{}, "",
			Paths{Dir: "/home/u/.local/state/balefire", File: "/e.yaml", Socket: "/e.sock", Named: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Locate(Machine{
				Env: func(name string) string { return tt.env[name] }, Root: tt.root, Home: tt.home,
				Exists: func(path string) bool { return path == tt.exists },
			}, tt.flags)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

func TestLocateWithoutAHome(t *testing.T) {
	if p, err := Locate(Machine{Env: func(string) string { return "" }}, Paths{}); err == nil {
		t.Errorf("found %+v", p)
	}
}
