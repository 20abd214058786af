package config

import (
	"fmt"
	"strings"

	"github.com/balefire/balefire/settings"
)

// Starter returns the text of a first configuration file with examples of the
// defaults as comments and, if any are given, the listen addresses.
func Starter(listen []string) string {
	var b strings.Builder
	b.WriteString("# balefire-node configuration. Values in comments are the defaults.\n" +
		"# docs/configuration.md describes every setting; check a change with:\n" +
		"#   balefire-node config validate\n")
	if len(listen) > 0 {
		b.WriteString("\nnet:\n  listen:\n")
		for _, a := range listen {
			fmt.Fprintf(&b, "    - %s\n", a)
		}
	} else {
		b.WriteString("\n# net:\n#   listen: [" + strings.Join(settings.Default().Net.Listen, ", ") + "]\n")
	}
	b.WriteString(`
# store:
#   engine: nutsdb        # or pebble; fixed once the folder contains a store

# The work that this machine does for its peers. Without an allow rule nobody
# may use a handler.
# handlers:
#   - kind: uname
#     exec: [uname]
#     args: true           # the sender may add arguments, but no flags
#     allow: [role:work]   # or peer:NAME
`)
	return b.String()
}
