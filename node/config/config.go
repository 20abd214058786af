package config

import (
	"log/slog"
	"reflect"
	"strings"
	"sync"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/settings"
)

// A Config holds every setting that a configuration file may contain: those of the node,
// and those of the daemon that runs it.
type Config struct {
	settings.Settings
	API API `yaml:"api" doc:"How programs on this machine reach this node."`
	Log Log `yaml:"log" doc:"What a node logs. SIGHUP reloads these settings without a restart."`
}

// API configures how programs on this machine reach this node.
type API struct {
	Socket string `yaml:"socket" defaultText:"node.sock in the runtime folder; see Places" doc:"path of the Unix socket"`
}

// Log configures what a node logs.
type Log struct {
	Level  string `yaml:"level" default:"info" enum:"debug,info,warn,error" doc:"lowest level that is written; single tasks are logged at debug only"`
	Format string `yaml:"format" default:"auto" enum:"auto,text,json" doc:"auto: text on a terminal, else JSON"`
}

// Node returns the configuration for node.New of a node in dir.
func (c Config) Node(dir string) node.Config {
	return node.Config{Dir: dir, Settings: c.Settings}
}

// Severity returns the lowest level that is written.
func (l Log) Severity() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo
	}
	return level
}

// fields lists the settings of Config.
var fields = sync.OnceValue(func() []settings.Field { return settings.Fields(reflect.TypeFor[Config]()) })

const handlersKey = "handlers"

func find(key string) (settings.Field, bool) {
	for _, f := range fields() {
		if f.Key == key {
			return f, true
		}
	}
	return settings.Field{}, false
}

// env returns the name of the environment variable of a setting.
func env(key string) string {
	return "BALEFIRE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}
