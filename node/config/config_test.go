package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

// write creates a folder with a config.yaml and returns the file's path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, text string, env ...string) *Loaded {
	t.Helper()
	l, err := Load(Source{File: write(t, text), Required: true, Environ: env})
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return l
}

func source(t *testing.T, l *Loaded, key string) string {
	t.Helper()
	for _, s := range l.List() {
		if s.Key == key {
			return s.Source
		}
	}
	t.Fatalf("no setting %s", key)
	return ""
}

func TestDefaultsWithoutAFile(t *testing.T) {
	l, err := Load(Source{File: filepath.Join(t.TempDir(), "config.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	c := l.Node("/data")
	if c.Dir != "/data" || c.Store.Engine != datadir.EngineNuts || c.Limits.PayloadMax != 10<<20 || c.Limits.IdempotencyTTL != 7*24*time.Hour {
		t.Errorf("defaults = %+v", c)
	}
	if len(c.Net.Listen) != 4 {
		t.Errorf("listens on %v", c.Net.Listen)
	}
	for _, s := range l.List() {
		if s.Source != "default" {
			t.Errorf("%s comes from %s", s.Key, s.Source)
		}
	}
}

func TestANamedFileMustExist(t *testing.T) {
	_, err := Load(Source{File: filepath.Join(t.TempDir(), "none.yaml"), Required: true})
	if err == nil || !strings.Contains(err.Error(), "none.yaml") || !strings.Contains(err.Error(), "balefire-node init") {
		t.Errorf("a missing file that was named explicitly: %v", err)
	}
}

func TestLaterSourceWins(t *testing.T) {
	path := write(t, "store: {engine: pebble}\nlimits:\n  slots: 3\n  max_pending: 7\nlog: {level: debug}\n")
	confd := filepath.Join(filepath.Dir(path), "conf.d")
	for name, text := range map[string]string{
		"10-a.yaml":    "limits: {slots: 4}\nhandlers:\n- {kind: one, type: echo, allow: [role:work]}\n",
		"20-b.yaml":    "limits: {slots: 5}\nhandlers:\n- {kind: two, type: echo, allow: [role:work]}\ndangerous: [wipe]\n",
		"30-c.yml":     "limits: {slots: 99}\n",
		".hidden.yaml": "limits: {slots: 98}\n",
	} {
		if err := os.MkdirAll(confd, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(confd, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Load(Source{File: path, Environ: []string{"BALEFIRE_LIMITS_MAX_PENDING=9", "BALEFIRE_DANGEROUS=wipe,burn", "HOME=/root"}})
	if err != nil {
		t.Fatal(err)
	}
	if l.Limits.Slots != 5 || l.Limits.MaxPending != 9 || l.Store.Engine != "pebble" || len(l.Handlers) != 2 || !reflect.DeepEqual(l.Dangerous, []string{"wipe", "burn"}) {
		t.Errorf("merged: %+v", l.Config)
	}
	for key, want := range map[string]string{
		"limits.slots": filepath.Join(confd, "20-b.yaml") + ":1", "store.engine": path + ":1",
		"limits.max_pending": "BALEFIRE_LIMITS_MAX_PENDING", "limits.done_count": "default",
		"handlers.two": filepath.Join(confd, "20-b.yaml") + ":3",
	} {
		if got := source(t, l, key); got != want {
			t.Errorf("%s comes from %s, want %s", key, got, want)
		}
	}
}

// An allow list may have a thousand peers, and of a mistake in one only that one is told.
func TestAThousandPeersInAnAllowList(t *testing.T) {
	var names strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&names, "peer:p%d, ", i)
	}
	text := func(last string) string {
		return "handlers:\n- {kind: one, type: echo, allow: [" + names.String() + last + "]}\n"
	}
	if n := len(load(t, text("peer:last")).Handlers[0].Allow); n != 1001 {
		t.Errorf("%d peers", n)
	}
	l, err := Load(Source{File: write(t, text("last one"))})
	if err == nil {
		err = l.Validate()
	}
	if err == nil || !strings.Contains(err.Error(), `allow "peer:last one"`) || strings.Contains(err.Error(), "peer:p7") {
		t.Errorf("%v", err)
	}
}

// someID is a valid peer id that no node in the tests has.
const someID = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"

// TestEverySettingReachesTheNode sets each setting to a value that is not its
// default and checks that node.Config, or its own field, changes.
func TestEverySettingReachesTheNode(t *testing.T) {
	for _, f := range fields() {
		before := load(t, "")
		text := map[reflect.Kind]string{reflect.Int: "5", reflect.Int64: "2d", reflect.String: "/tmp/x.sock", reflect.Slice: "/ip4/127.0.0.1/tcp/9", reflect.Bool: "off", reflect.Float64: "2.5"}[f.Type.Kind()]
		if enum := f.Tag.Get("enum"); enum != "" {
			text = enum[strings.LastIndex(enum, ",")+1:]
		}
		switch {
		case f.Key == "dangerous":
			text = "wipe"
		case f.Key == "mail.segment":
			text = "96MiB"
		case f.Key == "mail.pace":
			text = "300us"
		case f.Type == reflect.TypeFor[settings.Bytes]():
			text = "128MiB"
		case f.Key == "limits.graceful_timeout":
			text = "2m"
		case f.Key == "net.port_map":
			text = "on"
		case f.Key == "net.seeds":
			text = "/ip4/192.0.2.1/tcp/4001/p2p/" + someID
		case f.Key == "mesh.labels":
			text = "gpu,disk=ssd"
		case f.Key == "net.relays":
			text = "4"
		case f.Key == "mesh.probe_interval", f.Key == "mesh.probe_timeout", f.Key == "mesh.sync_interval":
			text = "7s"
		case strings.HasPrefix(f.Key, "mesh.") && strings.HasSuffix(f.Key, "_recover"):
			text = "9s"
		}
		env := env(f.Key) + "=" + text
		if f.Key == "store.max_blobs" { // must not be less than max_blob
			env = "BALEFIRE_STORE_MAX_BLOBS=1TiB"
		}
		after := load(t, "", env)
		if reflect.DeepEqual(before.Config, after.Config) {
			t.Errorf("%s changes nothing", env)
		}
		if !strings.HasPrefix(f.Key, "api.") && !strings.HasPrefix(f.Key, "log.") {
			if reflect.DeepEqual(before.Node("/d"), after.Node("/d")) {
				t.Errorf("%s does not reach the node", f.Key)
			}
		}
		if got := before.Changed(after); !reflect.DeepEqual(got, []string{f.Key}) {
			t.Errorf("changed = %v, want %s", got, f.Key)
		}
	}
}

func TestHandlersAreRead(t *testing.T) {
	l := load(t, `
handlers:
  - kind: ingest
    exec: [/usr/local/bin/ingest, --strict]
    allow: [role:work, "peer:laptop"]
    timeout: 1h
    on_crash: retry
  - kind: wipe
    exec: [/bin/wipe]
    allow: ["peer:desk"]
    profile: dangerous
  - {kind: grep, exec: [/bin/grep], args: true, allow_flags: true, allow: ["peer:desk"]}
dangerous: [wipe]
`)
	want := wire.HandlerSpec{Kind: "ingest", Exec: []string{"/usr/local/bin/ingest", "--strict"}, Allow: []string{"role:work", "peer:laptop"}, Timeout: "1h", OnCrash: "retry"}
	if !reflect.DeepEqual(l.Node("/d").Handlers[0], want) {
		t.Errorf("handler = %+v", l.Handlers[0])
	}
	want = wire.HandlerSpec{Kind: "grep", Exec: []string{"/bin/grep"}, Args: true, AllowFlags: true, Allow: []string{"peer:desk"}}
	if len(l.Handlers) != 3 || !reflect.DeepEqual(l.Node("/d").Handlers[2], want) {
		t.Errorf("handlers = %+v", l.Handlers)
	}
}

// TestBadConfigurations covers invalid configurations: each is rejected with its
// location and a hint.
func TestBadConfigurations(t *testing.T) {
	tests := []struct{ name, text, env, want string }{
		{"unknown section", "nett: {}", "", `:1: unknown setting "nett": did you mean net?`},
		{"unknown setting", "net:\n  listne: []", "", `:2: unknown setting "net.listne": did you mean net.listen?`},
		{"unknown setting without a similar one", "limits:\n  zzzzzzzz: 1", "", `:2: unknown setting "limits.zzzzzzzz"`},
		{"setting in the wrong section", "slots: 4", "", `:1: unknown setting "slots"`},
		{"upper case", "Store: {engine: pebble}", "", `unknown setting "Store": did you mean store?`},
		{"setting twice", "limits:\n  slots: 1\n  slots: 2", "", ":3: limits.slots is set twice"},
		{"section twice", "log: {level: info}\nlog: {level: debug}", "", ":2: log is set twice"},
		{"dotted key", "net.listen: [/ip4/1.2.3.4/tcp/1/x]", "", "must be tcp/PORT"},
		{"a list for everything", "- a", "", "a configuration file must be a mapping: lines of key: value"},
		{"a word for everything", "hello", "", "a configuration file must be a mapping: lines of key: value"},
		{"a word for a section", "net: yes", "", "net must be a mapping: lines of key: value"},
		{"a list for a section", "limits: [1]", "", "limits must be a mapping: lines of key: value"},
		{"two documents", "log: {level: info}\n---\nlog: {level: debug}", "", ":2: a second document"},
		{"tabs", "log:\n\tlevel: info", "", "line 2"},
		{"truncated", "log: {level: ", "", "line 1"},
		{"not text", "\x00\x01\x02", "", "control characters"},
		{"bad utf-8", "log: {level: \xff\xfe}", "", "UTF-8"},
		{"unknown alias", "log: {level: *x}", "", "unknown anchor"},
		{"merge key", "log:\n  <<: {level: info}", "", `unknown setting "log.<<"`},
		{"key is a list", "[a]: 1", "", "a key must be a non-empty word"},
		{"empty key", "'': 1", "", "a key must be a non-empty word"},
		{"number is a word", "limits: {slots: many}", "", `:1: limits.slots: "many" is not a whole number`},
		{"number with a fraction", "limits: {slots: 1.5}", "", "not a whole number"},
		{"number too large for the machine", "limits: {slots: 99999999999999999999}", "", "not a whole number"},
		{"number too large", "limits: {slots: 10001}", "", "10001 is too large: at most 10000"},
		{"number negative", "limits: {slots: -1}", "", "-1 is negative"},
		{"number zero", "limits: {max_pending: 0}", "", "0 is too small: 1 to 10000000"},
		{"number is a list", "limits: {slots: [1]}", "", "limits.slots must be a single value"},
		{"number is a mapping", "limits: {slots: {a: 1}}", "", "limits.slots must be a single value"},
		{"size that is a word", "store: {reserve: lots}", "", `"lots" is not a size`},
		{"size with a wrong unit", "store: {reserve: 5 PB}", "", "not a size"},
		{"size negative", "store: {reserve: -5}", "", "not a size"},
		{"size overflows", "store: {reserve: 9999999999 TiB}", "", "not a size"},
		{"size not a number", "store: {reserve: NaNGiB}", "", "not a size"},
		{"size none where it is not allowed", "store: {max_blob: none}", "", "none is negative"},
		{"segment too small", "store: {segment: 1KiB}", "", "1KiB is too small: 1MiB to 1GiB"},
		{"memory limit too small", "limits: {memory_limit: 1B}", "", "1 is too small: at least 32MiB"},
		{"segment too large", "store: {segment: 2GiB}", "", "2GiB is too large: 1MiB to 1GiB"},
		{"blobs smaller than a blob", "store: {max_blob: 2GiB, max_blobs: 1GiB}", "", "a body of that size would never fit"},
		{"payload too large", "limits: {payload_max: 1GiB}", "", "1GiB is too large: 1KiB to 256MiB"},
		{"duration without unit", "limits: {done_age: 30}", "", `"30" is not a duration`},
		{"duration negative", "limits: {done_age: -1h}", "", "not a valid duration"},
		{"duration overflows", "limits: {done_age: 9999999d}", "", "not a duration"},
		{"duration overflows as hours", "limits: {done_age: 99999999999h}", "", "not a duration"},
		{"duration too short", "limits: {done_age: 1s}", "", "1s is too small: 1m to 365d"},
		{"idempotency beyond the longest ttl", "limits: {idempotency_ttl: 31d}", "", "31d is too large: 1m to 30d"},
		{"unknown engine", "store: {engine: nutsdb2}", "", `"nutsdb2" is not one of nutsdb, pebble: did you mean nutsdb?`},
		{"unknown level", "log: {level: loud}", "", `"loud" is not one of debug, info, warn, error`},
		{"unknown format", "log: {format: xml}", "", "not one of auto, text, json"},
		{"no listener", "net: {listen: []}", "", "the list is empty"},
		{"listener is a word", "net: {listen: /ip4/0.0.0.0/tcp/1}", "", "net.listen must be a list"},
		{"listener is host and port", "net: {listen: ['0.0.0.0:4001']}", "", "not a multiaddr"},
		{"listener is a number", "net: {listen: [4001]}", "", "net.listen must be a list of words"},
		{"listener on a name", "net: {listen: [/dns4/example.org/tcp/4001]}", "", "cannot listen on a name"},
		{"listener on a bad ip", "net: {listen: [/ip4/300.0.0.1/tcp/4001]}", "", "not an IPv4 address"},
		{"listener of the other family", "net: {listen: [/ip6/127.0.0.1/tcp/4001]}", "", "not an IPv6 address"},
		{"listener on a bad port", "net: {listen: [/ip4/127.0.0.1/tcp/70000]}", "", "the port must be a number"},
		{"listener on bare udp", "net: {listen: [/ip4/127.0.0.1/udp/4001]}", "", "udp/PORT/quic-v1"},
		{"listener of an unknown kind", "net: {listen: [/unix/tmp/a/b]}", "", "must begin with ip4 or ip6"},
		{"announced port zero", "net: {announce: [/ip4/1.2.3.4/tcp/0]}", "", "the port must be a number"},
		{"socket is relative", "api: {socket: node.sock}", "", "must be an absolute path"},
		{"socket too long", "api: {socket: /" + strings.Repeat("x", 120) + "}", "", "the limit for a socket path is 103"},
		{"dangerous is not a kind", "dangerous: ['Wipe All']", "", "is not a kind"},
		{"handlers is a mapping", "handlers: {a: b}", "", "handlers must be a list"},
		{"handler is a word", "handlers: [echo]", "", "a handler must be a mapping"},
		{"handler with an unknown field", "handlers:\n- kind: a\n  exce: [x]\n  allow: [role:work]", "", `:3: unknown setting "exce" of a handler: did you mean exec?`},
		{"handler with a wrong type", "handlers:\n- {kind: a, exec: 7, allow: [role:work]}", "", "handler: "},
		{"handler field twice", "handlers:\n- {kind: a, kind: b, type: echo, allow: [role:work]}", "", "already defined"},
		{"handler without kind", "handlers:\n- {type: echo, allow: [role:work]}", "", "a kind must be 1-128"},
		{"handler for nobody", "handlers:\n- {kind: a, type: echo}", "", "nobody may request it"},
		{"handler for a bad rule", "handlers:\n- {kind: a, type: echo, allow: [group:x]}", "", "use peer:NAME"},
		{"handler without program", "handlers:\n- {kind: a, allow: [role:work]}", "", "no program"},
		{"handler with a bad timeout", "handlers:\n- {kind: a, type: echo, allow: [role:work], timeout: soon}", "", "timeout"},
		{"handler with a bad policy", "handlers:\n- {kind: a, type: echo, allow: [role:work], on_crash: pray}", "", "on_crash"},
		{"handler twice", "handlers:\n- {kind: a, type: echo, allow: [role:work]}\n- {kind: a, type: echo, allow: [role:work]}", "", ":3: handler \"a\" is already defined at"},
		{"dangerous handler that is not listed", "handlers:\n- {kind: a, exec: [x], allow: [peer:b], profile: dangerous}", "", "add a to the list dangerous"},
		{"dangerous handler for a role", "handlers:\n- {kind: a, exec: [x], allow: [role:work], profile: dangerous}\ndangerous: [a]", "", "peer by peer"},
		{"variable of no setting", "", "BALEFIRE_NET_LISTNE=x", "BALEFIRE_NET_LISTNE: no such setting: did you mean BALEFIRE_NET_LISTEN?"},
		{"variable with a bad value", "", "BALEFIRE_LIMITS_SLOTS=x", `BALEFIRE_LIMITS_SLOTS: "x" is not a whole number`},
		{"variable beyond its limit", "", "BALEFIRE_LOG_LEVEL=loud", "BALEFIRE_LOG_LEVEL: log.level"},
		{"empty variable", "", "BALEFIRE_NET_LISTEN=", "the list is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, tt.text)
			src := Source{File: path}
			if tt.env != "" {
				src.Environ = []string{tt.env}
			}
			_, err := Load(src)
			if err == nil {
				t.Fatal("the configuration was accepted")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is\n\t%v\nwant it to contain\n\t%s", err, tt.want)
			}
			if tt.env == "" && !strings.Contains(err.Error(), path) {
				t.Errorf("the error does not name the file: %v", err)
			}
		})
	}
	if len(tests) < 60 {
		t.Errorf("%d invalid configurations, want at least 60", len(tests))
	}
}

func TestAllErrorsAreReported(t *testing.T) {
	_, err := Load(Source{File: write(t, "nett: 1\nlimits: {slots: x}\nlog: {tone: info}\n")})
	if n := len(strings.Split(err.Error(), "\n")); n != 3 {
		t.Errorf("%d of 3 errors are reported: %v", n, err)
	}
}

func TestHugeFileIsRejected(t *testing.T) {
	_, err := Load(Source{File: write(t, strings.Repeat("# nothing\n", maxFile/5))})
	if err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("err = %v", err)
	}
}

// Variables such as BALEFIRE_TASK_ID, which a handler's program gets, are not settings.
func TestOtherVariablesAreIgnored(t *testing.T) {
	load(t, "", "BALEFIRE_TASK_ID=x", "BALEFIRE_DIR=/d", "BALEFIRE_ATTEMPT=1", "BALEFIRE_FAILPOINT=x")
}

func TestStarterIsValid(t *testing.T) {
	load(t, Starter(nil))
	l := load(t, Starter([]string{"/ip4/127.0.0.1/tcp/4002"}))
	if !reflect.DeepEqual(l.Net.Listen, []string{"/ip4/127.0.0.1/tcp/4002"}) {
		t.Errorf("listen = %v", l.Net.Listen)
	}
	plain := strings.NewReplacer("# net:", "net:", "#   listen", "  listen", "# store:", "store:", "#   engine", "  engine", "# handlers:", "handlers:",
		"#   - kind", "  - kind", "#     exec", "    exec", "#     args", "    args", "#     allow", "    allow").Replace(Starter(nil))
	if l = load(t, plain); len(l.Handlers) != 1 || source(t, l, "net.listen") == "default" {
		t.Errorf("the starter with its comments enabled gives %+v", l.Config)
	}
}

// docs/configuration.md equals the output of Markdown.
func TestDocsAreCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if *update {
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
		t.Errorf("%s is out of date: go test ./node/config -update", path)
	}
}

// TestDocumentedDefaults checks that a node that a program embeds has the default that the
// documentation states, and zero where that states how the node computes it.
func TestDocumentedDefaults(t *testing.T) {
	text := Markdown()
	for _, f := range settings.Fields(reflect.TypeFor[settings.Settings]()) {
		_, row, _ := strings.Cut(text, "| `"+f.Key+"` | ")
		documented, _, _ := strings.Cut(row, " | ")
		n := node.DefaultConfig("/d")
		got := f.Text(&n.Settings)
		var want settings.Settings
		if f.Tag.Get("default") != "" {
			if err := f.Set(&want, documented); err != nil {
				t.Errorf("%s: %v", f.Key, err)
			}
		}
		if got != f.Text(&want) || documented == "" {
			t.Errorf("%s is %q, documented is %q", f.Key, got, documented)
		}
	}
}

// An empty list of members whose queues are signed is none, wherever it is set.
func TestMadeByNobody(t *testing.T) {
	for _, l := range []*Loaded{load(t, "queues: {made_by: []}"), load(t, "", "BALEFIRE_QUEUES_MADE_BY=")} {
		if by := l.Node("/d").Queues.MadeBy; len(by) > 0 {
			t.Errorf("it signs those of %v", by)
		}
	}
	if by := load(t, "").Node("/d").Queues.MadeBy; !reflect.DeepEqual(by, []string{"role:work"}) {
		t.Errorf("by default it signs those of %v", by)
	}
}

func TestDocsDescribeEverySetting(t *testing.T) {
	text := Markdown()
	for _, f := range fields() {
		if !strings.Contains(text, "`"+f.Key+"`") {
			t.Errorf("%s is not described", f.Key)
		}
		if f.Tag.Get("doc") == "" {
			t.Errorf("%s has no description", f.Key)
		}
	}
	for _, s := range seedSettings {
		if _, ok := find(s.key); s.key != "" && !ok {
			t.Errorf("seedSettings names %s, which is not a setting", s.key)
		}
	}
}

func FuzzMerge(f *testing.F) {
	f.Add("net: {listen: [a]}\nhandlers:\n- {kind: a, allow: [role:b]}\n")
	f.Add("limits: &x {slots: 1}\nstore: *x\n")
	f.Add("a: [[[[[[[")
	f.Add("handlers:\n- &h {kind: a, type: echo, allow: [role:w]}\n- *h\n")
	f.Fuzz(func(t *testing.T, text string) {
		l := newLoaded()
		if l.merge("fuzz.yaml", []byte(text)) == nil && l.Validate() == nil {
			_ = l.List()
			_ = l.Node("/d")
		}
	})
}
