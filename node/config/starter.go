package config

import (
	"fmt"
	"strings"
)

// Starter returns the text of a first configuration file: everything at its
// default and written down as a comment, but the addresses when there are any.
func Starter(listen []string) string {
	var b strings.Builder
	b.WriteString("# balefire-node configuration. What is commented out is the default.\n" +
		"# Every setting is described in docs/configuration.md; check a change with:\n" +
		"#   balefire-node config validate\n")
	if len(listen) > 0 {
		b.WriteString("\nnet:\n  listen:\n")
		for _, a := range listen {
			fmt.Fprintf(&b, "    - %s\n", a)
		}
	} else {
		b.WriteString("\n# net:\n#   listen: [" + strings.Join(defaultListen(), ", ") + "]\n")
	}
	b.WriteString(`
# store:
#   engine: nutsdb        # or pebble; fixed once the folder has one

# What this machine does for others. Nobody may do what is not allowed here.
# handlers:
#   - kind: uname
#     exec: [uname]
#     args: true           # the sender may add arguments, but no flags
#     allow: [role:work]   # or peer:NAME
`)
	return b.String()
}

func defaultListen() []string {
	s, _ := find("net.listen")
	return splitList(s.tag.Get("default"))
}
