package command

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/balefire/balefire/wire"
)

// interpreters run the first non-flag argument as code.
var interpreters = wordSet("sh bash dash zsh ksh fish csh tcsh busybox python pypy perl ruby node nodejs deno bun php lua luajit tclsh osascript pwsh powershell cmd awk gawk mawk sed make")

// launchers run their arguments as a program, here or on another machine.
var launchers = wordSet("env xargs ssh sudo doas su nohup nice ionice setsid timeout stdbuf chroot unshare nsenter runuser flock watch parallel time strace gdb systemd-run docker podman kubectl")

// flagged programs run a program, or write a file, named by one of their flags.
var flagged = wordSet("find tar git rsync scp curl wget sort zip man less vi vim ex nano ftp tcpdump openssl journalctl")

func wordSet(s string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(s) {
		m[w] = true
	}
	return m
}

// Warn returns what senders could do with a handler that runs exec and appends
// their arguments, or nothing. It knows only common programs: an empty result
// proves nothing about others.
func Warn(exec []string, args, flags bool) []wire.Note {
	if !args || len(exec) == 0 {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(filepath.Base(exec[0]), ".exe"))
	name = strings.TrimRight(name, "0123456789.") // python3.12
	var code wire.NoteCode
	switch {
	case launchers[name]:
		code = wire.NoteRunsPrograms
	case interpreters[name] && !slices.ContainsFunc(exec[1:], isScript):
		code = wire.NoteRunsCode
	case interpreters[name], !flags, !flagged[name]:
		return nil
	default:
		code = wire.NoteRiskyFlags
	}
	return []wire.Note{{Code: code, NoteArgs: wire.NoteArgs{Detail: name}}}
}

// isScript reports whether a fixed argument names what an interpreter runs: further
// arguments are data.
func isScript(word string) bool { return !strings.HasPrefix(word, "-") }
