//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A unit has the settings of a service, as systemd.exec(5) defines them: those of the unit
// file, changed by its drop-ins. A setting that takes a list has the items of all files; an
// empty one clears it.
type unit map[string]string

// listSettings are the settings that take lists.
var listSettings = callSet{"AmbientCapabilities": true, "CapabilityBoundingSet": true, "RestrictAddressFamilies": true, "SystemCallArchitectures": true, "SystemCallFilter": true}

// settingsOfTests are the settings that start or the test itself applies.
var settingsOfTests = strings.Fields(`AmbientCapabilities CapabilityBoundingSet ExecStart Group NoNewPrivileges
	RestrictAddressFamilies RestrictNamespaces RestrictSUIDSGID RuntimeDirectoryMode StateDirectoryMode SystemCallArchitectures
	SystemCallErrorNumber SystemCallFilter UMask User`)

// otherSettings are not applied: they tell systemd when to start and stop a node, name
// folders, or take from the node and its handlers alike parts of the file system, and system
// calls that give no access to files of others.
var otherSettings = strings.Fields(`ConfigurationDirectory ExecReload KillMode LimitNOFILE LockPersonality NotifyAccess PrivateDevices PrivateTmp ProtectClock
	ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectSystem RemoveIPC
	Restart RestartSec RestrictRealtime RuntimeDirectory StateDirectory TimeoutStartSec TimeoutStopSec Type WatchdogSec`)

// readUnit reads the service section of a unit and its drop-ins.
func readUnit(paths ...string) (unit, error) {
	u := make(unit)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		section := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			key, value, ok := strings.Cut(line, "=")
			switch {
			case line == "" || line[0] == '#' || line[0] == ';':
			case line[0] == '[':
				section = line
			case !ok || strings.HasSuffix(line, `\`):
				return nil, fmt.Errorf("%s: %q is not a setting on one line", path, line)
			case section == "[Service]" && listSettings[key] && value != "":
				u[key] = strings.TrimSpace(u[key] + " " + value)
			case section == "[Service]":
				u[key] = value
			}
		}
	}
	for key := range u {
		if !slices.Contains(settingsOfTests, key) && !slices.Contains(otherSettings, key) {
			return nil, fmt.Errorf("%s: no test applies the setting %s", paths, key)
		}
	}
	return u, nil
}

// mode returns the permissions that a setting gives, such as 0711.
func (u unit) mode(key string) (os.FileMode, error) {
	m, err := strconv.ParseUint(u[key], 8, 32)
	if err != nil {
		return 0, fmt.Errorf("%s=%s: %w", key, u[key], err)
	}
	return os.FileMode(m), nil
}

// refused returns what becomes of a process that makes a system call outside of the filter:
// killed by a signal, or a number of an error.
func (u unit) refused() (uint32, error) {
	name := u["SystemCallErrorNumber"]
	if name == "" || name == "kill" {
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	}
	for n := range unix.Errno(200) {
		if unix.ErrnoName(n) == name {
			return refuse(n), nil
		}
	}
	return 0, fmt.Errorf("SystemCallErrorNumber=%s: there is no such error", name)
}

// filters returns the programs that the settings ask for.
func (u unit) filters() (all []filter, err error) {
	groups, err := readGroups(groupsFile)
	if err != nil {
		return nil, err
	}
	numbers, err := callNumbers()
	if err != nil {
		return nil, err
	}
	if names := strings.Fields(u["SystemCallFilter"]); len(names) > 0 {
		if slices.ContainsFunc(names, func(name string) bool { return strings.ContainsAny(name, "~:") }) {
			return nil, fmt.Errorf("SystemCallFilter=%s: only lists of what is allowed are understood", u["SystemCallFilter"])
		}
		allowed, err := expand(groups, append(names, "@default")...) // what every program needs is always allowed
		if err != nil {
			return nil, err
		}
		known, err := expand(groups, "@known")
		if err != nil {
			return nil, err
		}
		v, err := u.refused()
		if err != nil {
			return nil, err
		}
		all = append(all, allowOnly(allowed, known, v, numbers))
	}
	if names := strings.Fields(u["RestrictAddressFamilies"]); len(names) > 0 {
		var families []uint32
		for _, name := range names {
			family, ok := map[string]uint32{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}[name]
			if !ok {
				return nil, fmt.Errorf("RestrictAddressFamilies: %s is not known", name)
			}
			families = append(families, family)
		}
		all = append(all, socketsOf(families, numbers))
	}
	for setting, rules := range map[string][]callRule{"RestrictNamespaces": namespaceRules(), "RestrictSUIDSGID": modeRules()} {
		if u[setting] == "yes" {
			all = append(all, refuseWhen(numbers, rules...))
		}
	}
	switch archs := u["SystemCallArchitectures"]; archs {
	case "":
	case "native":
		f, err := nativeOnly()
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	default:
		return nil, fmt.Errorf("SystemCallArchitectures=%s is not known", archs)
	}
	return all, nil
}

// namespaceRules refuse new namespaces, and clone3, whose flags a filter cannot read.
func namespaceRules() []callRule {
	rules := []callRule{{call: "clone3", err: unix.ENOSYS}, {"setns", unix.EPERM, []condition{{1, ^uint32(0), 0}}}}
	for _, flag := range []uint32{unix.CLONE_NEWCGROUP, unix.CLONE_NEWIPC, unix.CLONE_NEWNET, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWUSER, unix.CLONE_NEWUTS} {
		for call, arg := range map[string]int{"clone": 0, "unshare": 0, "setns": 1} {
			rules = append(rules, callRule{call, unix.EPERM, []condition{{arg, flag, flag}}})
		}
	}
	return rules
}

// modeRules refuse files that run as their owner or group, and openat2, whose mode a filter
// cannot read.
func modeRules() []callRule {
	rules := []callRule{{call: "openat2", err: unix.ENOSYS}}
	for _, bit := range []uint32{unix.S_ISUID, unix.S_ISGID} {
		for call, arg := range map[string]int{"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2} {
			rules = append(rules, callRule{call, unix.EPERM, []condition{{arg, bit, bit}}})
		}
		for call, arg := range map[string]int{"open": 2, "openat": 3} {
			rules = append(rules, callRule{call, unix.EPERM, []condition{{arg - 1, unix.O_CREAT, unix.O_CREAT}, {arg, bit, bit}}})
		}
	}
	return rules
}

// capabilities are those that the unit may name.
var capabilities = map[string]int{"CAP_SETUID": unix.CAP_SETUID, "CAP_SETGID": unix.CAP_SETGID}

// caps returns the capabilities of a setting as a bit mask.
func (u unit) caps(key string) (mask uint32, err error) {
	for name := range strings.FieldsSeq(u[key]) {
		c, ok := capabilities[name]
		if !ok {
			return 0, fmt.Errorf("%s=%s: %s is not known", key, u[key], name)
		}
		mask |= 1 << c
	}
	return mask, nil
}

// exec replaces this process, which is root's, by argv as the user uid in the sandbox of u,
// in the order of systemd: capabilities, user, filters.
func (u unit) exec(uid int, argv []string, env []string) error {
	filters, err := u.filters()
	if err != nil {
		return err
	}
	bounding, err := u.caps("CapabilityBoundingSet")
	if err != nil {
		return err
	}
	ambient, err := u.caps("AmbientCapabilities")
	if err != nil {
		return err
	}
	umask, err := u.mode("UMask")
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	syscall.Umask(int(umask))
	runtime.LockOSThread() // the following applies to this thread, whose program is replaced
	if err := become(uid, bounding, ambient); err != nil {
		return err
	}
	if u["NoNewPrivileges"] == "yes" {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	for _, f := range filters {
		if err := f.install(); err != nil {
			return err
		}
	}
	return fmt.Errorf("run %s: %w", argv[0], syscall.Exec(argv[0], argv, env))
}

// become makes this thread one of the user uid with the ambient capabilities, which it
// cannot exceed bounding.
func become(uid int, bounding, ambient uint32) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c > 31 || bounding&(1<<c) == 0 {
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // an older kernel knows fewer
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	id := uintptr(uid)
	for _, c := range []struct{ call, a, b, c uintptr }{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
		if _, _, err := unix.RawSyscall(c.call, c.a, c.b, c.c); err != 0 {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: ambient, Permitted: ambient, Inheritable: ambient}}
	if _, _, err := unix.Syscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); err != 0 {
		return fmt.Errorf("set the capabilities: %w", err)
	}
	for _, c := range slices.Sorted(maps.Values(capabilities)) {
		if ambient&(1<<c) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise the capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0) // the change of the user cleared it
}

// unitVariable asks this test binary to run the program in its arguments as the service
// unit does: it has the paths of the unit's files.
const unitVariable = "E2E_UNIT"

func runUnit() int {
	paths := filepath.SplitList(os.Getenv(unitVariable))
	if err := os.Unsetenv(unitVariable); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	u, err := readUnit(paths...)
	if err == nil {
		err = u.exec(nodeUser, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "run in the sandbox of the unit:", err)
	return 1
}
