//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// groupsFile lists the groups of system calls that units name, such as @system-service.
const groupsFile = "testdata/syscalls-systemd-252.txt"

// Offsets in struct seccomp_data, see seccomp(2). The low half of an argument comes first
// on the supported machines.
const (
	callOffset = 0
	archOffset = 4
	argsOffset = 16
)

// A callSet is a set of names of system calls.
type callSet map[string]bool

// readGroups reads a file of lines "@group: name...", in which a line that begins with a tab
// continues the previous one.
func readGroups(path string) (map[string][]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	groups := make(map[string][]string)
	group := ""
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || line[0] == '#':
			continue
		case line[0] == '@':
			var named bool
			if group, named = strings.CutSuffix(fields[0], ":"); !named {
				return nil, fmt.Errorf("%s: %q is not a group with a colon", path, fields[0])
			}
			fields = fields[1:]
		case group == "":
			return nil, fmt.Errorf("%s: a line outside of a group: %q", path, line)
		}
		groups[group] = append(groups[group], fields...)
	}
	return groups, nil
}

// expand returns the calls of names, each a call or a group.
func expand(groups map[string][]string, names ...string) (callSet, error) {
	all := make(callSet)
	for _, name := range names {
		if name[0] != '@' {
			all[name] = true
			continue
		}
		members, ok := groups[name]
		if !ok {
			return nil, fmt.Errorf("%s does not list the group %s", groupsFile, name)
		}
		calls, err := expand(groups, members...)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, calls)
	}
	return all, nil
}

// numberRE matches a constant of golang.org/x/sys/unix.
var numberRE = regexp.MustCompile(`(?m)^\tSYS_(\w+) += (\d+)$`)

// callNumbers returns the numbers of this machine's system calls by name, from the source of
// golang.org/x/sys/unix, which has them as constants only.
func callNumbers() (map[string]uint32, error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		return nil, fmt.Errorf("find golang.org/x/sys/unix: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(string(bytes.TrimSpace(dir)), "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		return nil, err
	}
	numbers := make(map[string]uint32)
	for _, m := range numberRE.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			return nil, err
		}
		numbers[strings.ToLower(m[1])] = uint32(n)
	}
	if numbers["ptrace"] != unix.SYS_PTRACE {
		return nil, fmt.Errorf("read %d system calls, and ptrace is not one of them", len(numbers))
	}
	return numbers, nil
}

// A filter is a program that decides about system calls.
type filter []unix.SockFilter

func instruction(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func load(offset uint32) unix.SockFilter {
	return instruction(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

func verdict(v uint32) unix.SockFilter { return instruction(unix.BPF_RET|unix.BPF_K, v) }

func refuse(err unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(err) }

// skipUnless skips n instructions unless the loaded value compares with k.
func skipUnless(compare uint16, k uint32, n uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | compare, K: k, Jf: n}
}

// nativeOnly kills a process that calls by the numbers of another architecture.
func nativeOnly() (filter, error) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("no filter is known for %s", runtime.GOARCH)
	}
	const x32 = 1 << 30 // the bit of another set of calls on amd64
	return filter{
		load(archOffset), skipUnless(unix.BPF_JEQ, arch, 2),
		load(callOffset), {Code: unix.BPF_JMP | unix.BPF_K | unix.BPF_JGE, K: x32, Jf: 1},
		verdict(unix.SECCOMP_RET_KILL_PROCESS), verdict(unix.SECCOMP_RET_ALLOW),
	}, nil
}

// allowOnly allows the calls in allowed. Others end in v if they are known, and do not exist
// if they are newer than the list of known calls.
func allowOnly(allowed, known callSet, v uint32, numbers map[string]uint32) filter {
	f := filter{load(callOffset)}
	for _, set := range []struct {
		calls callSet
		v     uint32
	}{{allowed, unix.SECCOMP_RET_ALLOW}, {known, v}} {
		for _, name := range slices.Sorted(maps.Keys(set.calls)) {
			if n, ok := numbers[name]; ok { // the lists are those of all architectures
				f = append(f, skipUnless(unix.BPF_JEQ, n, 1), verdict(set.v))
			}
		}
	}
	return append(f, verdict(refuse(unix.ENOSYS)))
}

// A condition is one on an argument of a system call: (argument & mask) == value.
type condition struct {
	arg         int
	mask, value uint32
}

// A callRule refuses a call when all conditions hold.
type callRule struct {
	call string
	err  unix.Errno
	when []condition
}

// refuseWhen refuses what one of the rules matches.
func refuseWhen(numbers map[string]uint32, rules ...callRule) filter {
	var f filter
	for _, r := range rules {
		number, ok := numbers[r.call]
		if !ok {
			continue
		}
		end := len(r.when)*3 + 1 // instructions that remain after the first comparison
		f = append(f, load(callOffset), skipUnless(unix.BPF_JEQ, number, uint8(end)))
		for _, c := range r.when {
			end -= 3
			f = append(f, load(uint32(argsOffset+8*c.arg)), instruction(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, c.mask), skipUnless(unix.BPF_JEQ, c.value, uint8(end)))
		}
		f = append(f, verdict(refuse(r.err)))
	}
	return append(f, verdict(unix.SECCOMP_RET_ALLOW))
}

// socketsOf refuses sockets of other families.
func socketsOf(families []uint32, numbers map[string]uint32) filter {
	f := filter{load(callOffset), skipUnless(unix.BPF_JEQ, numbers["socket"], uint8(2*len(families)+2)), load(argsOffset)}
	for _, family := range families {
		f = append(f, skipUnless(unix.BPF_JEQ, family, 1), verdict(unix.SECCOMP_RET_ALLOW))
	}
	return append(f, verdict(refuse(unix.EAFNOSUPPORT)), verdict(unix.SECCOMP_RET_ALLOW))
}

// install applies f to this thread and to all processes that it starts. The thread must
// have given up gaining privileges.
func (f filter) install() error {
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, _, err := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)))
	if err != 0 {
		return fmt.Errorf("install a filter of %d instructions: %w", len(f), err)
	}
	return nil
}
