package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/balefire/balefire/node"
)

// Markdown writes docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(docsHead)
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() == reflect.Struct {
			docsSection(&b, f.Tag.Get("yaml"), f.Tag.Get("doc"))
		}
	}
	docsSection(&b, "dangerous", "Kinds that may do harm.")
	docsHandlers(&b)
	docsSeeds(&b)
	return b.String()
}

const docsHead = `# Configuration

<!-- Written by ` + "`balefire-node config docs`" + ` from node/config. Do not edit. -->

A node needs no configuration to run. What is set is read in this order, the later one over the earlier, setting by
setting:

1. the defaults of this page
2. the configuration file
3. the files ` + "`conf.d/*.yaml`" + ` beside it, by name
4. the environment: ` + "`net.listen`" + ` is ` + "`BALEFIRE_NET_LISTEN`" + `, lists are separated by commas

A list replaces the list before it, but ` + "`handlers`" + ` and ` + "`dangerous`" + ` add up, so that each file of
` + "`conf.d`" + ` may bring its own. A key that is not on this page is refused, with its line; so is a variable that begins
like a setting and is none. ` + "`balefire-node config show --effective`" + ` tells each value and where it comes from,
` + "`balefire-node config validate`" + ` checks a file without starting anything. ` + "`SIGHUP`" + ` reads everything again:
` + "`log.level`" + ` changes at once, for other settings the node stops gracefully and opens again in the same process; a
configuration that is wrong changes nothing. The log tells the names of the changed settings, never their values.

Sizes are bytes or have a unit (` + "`64MiB`, `1.5GB`" + `), spans of time are written as ` + "`90s`, `15m`, `1h30m`, `7d`" + `.

## Places

| what | flag | environment | as root | as a user | with ` + "`--dir DIR`" + ` |
|---|---|---|---|---|---|
| the node's folder | ` + "`--dir`" + ` | ` + "`BALEFIRE_DIR`, `STATE_DIRECTORY`" + ` | /var/lib/balefire | $XDG_STATE_HOME/balefire, ~/.local/state/balefire | DIR |
| configuration | ` + "`--config`" + ` | ` + "`BALEFIRE_CONFIG`, `CONFIGURATION_DIRECTORY`" + ` | /etc/balefire/config.yaml | $XDG_CONFIG_HOME/balefire/config.yaml, ~/.config/balefire/config.yaml | DIR/config.yaml |
| socket | ` + "`--socket`" + ` | ` + "`BALEFIRE_SOCKET`, `RUNTIME_DIRECTORY`" + ` | /run/balefire/node.sock | $XDG_RUNTIME_DIR/balefire/node.sock, else in the folder | DIR/node.sock |

A flag wins over the environment. A folder that is named holds all three, so two nodes live on one machine by ` + "`--dir`" + `
alone. A user without a node is led to the socket of the system's node.
`

func docsSection(b *strings.Builder, name, doc string) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| setting | default | limits | meaning |\n|---|---|---|---|\n", name, doc)
	for _, s := range specs() {
		if s.key != name && !strings.HasPrefix(s.key, name+".") {
			continue
		}
		fallback := s.fallback()
		if fallback == "" {
			fallback = "none"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", s.key, strings.ReplaceAll(fallback, ",", ", "), dash(s.limits()), s.tag.Get("doc"))
	}
}

func docsHandlers(b *strings.Builder) {
	b.WriteString("\n## handlers\n\nA list of what this node does for others, one entry a kind. Handlers that were added by command are kept by the\n" +
		"node itself, not here.\n\n| field | values | meaning |\n|---|---|---|\n")
	t := reflect.TypeFor[node.HandlerSpec]()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		values := strings.ReplaceAll(f.Tag.Get("enum"), ",", ", ")
		if values == "" {
			values = kindOf(f.Type)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, values, f.Tag.Get("doc"))
	}
	b.WriteString(docsExample)
}

const docsExample = "\n```yaml\n" + `handlers:
  - kind: ingest
    exec: [/usr/local/bin/ingest, --strict]
    allow: [role:work, "peer:laptop"]
    timeout: 1h
    on_crash: retry
  - kind: wipe
    exec: [/usr/local/bin/wipe]
    profile: dangerous
    allow: ["peer:admin-desk"]
dangerous: [wipe]
` + "```\n"

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true, false"
	case reflect.Slice:
		return "list of words"
	case reflect.Int, reflect.Int64:
		return "number"
	}
	return "text"
}

func docsSeeds(b *strings.Builder) {
	b.WriteString("\n## What the seeds call it\n\nEvery setting that the seed documents name, and what became of it.\n\n| in the seeds | here | default | why |\n|---|---|---|---|\n")
	for _, s := range seeds {
		fallback := s.fixed
		here := "not a setting"
		if s.key != "" {
			spec, _ := find(s.key)
			here, fallback = "`"+s.key+"`", spec.fallback()
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", s.name, here, dash(fallback), s.why)
	}
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
