package memory

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Available returns the limit of this process.
func Available() Limit { return read(os.DirFS("/")) }

// read determines the limit from the files below root.
func read(root fs.FS) Limit {
	var l Limit
	if info, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		l.Bytes = parseTotal(info)
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return l
	}
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return l
	}
	for _, h := range hierarchies(mounts, groups) {
		for _, dir := range h.dirs() {
			for _, file := range h.files {
				b, err := fs.ReadFile(root, path.Join(dir, file))
				if n := parseNumber(b); err == nil && n > 0 && (l.Bytes == 0 || n < l.Bytes) {
					l = Limit{n, true}
				}
			}
		}
	}
	return l
}

// A hierarchy is a mounted tree of control groups that limits memory.
type hierarchy struct {
	mount string   // where it is mounted, without the leading slash
	group string   // the process's group below mount
	files []string // files with a limit
}

// hierarchies finds the trees that limit memory, of versions 1 and 2.
func hierarchies(mounts, groups []byte) []hierarchy {
	var out []hierarchy
	lines := bufio.NewScanner(bytes.NewReader(mounts))
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		at, what := strings.Fields(left), strings.Fields(right)
		if !ok || len(at) < 5 || len(what) < 3 {
			continue
		}
		h := hierarchy{mount: strings.TrimPrefix(unescape(at[4]), "/")}
		controller := ""
		switch {
		case what[0] == "cgroup2":
			h.files = []string{"memory.max", "memory.high"}
		case what[0] == "cgroup" && slices.Contains(strings.Split(what[2], ","), "memory"):
			h.files, controller = []string{"memory.limit_in_bytes"}, "memory"
		default:
			continue
		}
		group, ok := groupOf(groups, controller)
		if !ok {
			continue
		}
		if root := unescape(at[3]); root != "/" { // the mount shows only a part of the tree
			below, ok := strings.CutPrefix(group, root)
			if !ok || below != "" && below[0] != '/' {
				below = ""
			}
			group = below
		}
		h.group = path.Clean("/" + group)
		out = append(out, h)
	}
	return out
}

// dirs lists the folders of the process's group and its parents.
func (h hierarchy) dirs() (dirs []string) {
	for g := h.group; ; g = path.Dir(g) {
		dirs = append(dirs, path.Join(h.mount, g))
		if g == "/" {
			return dirs
		}
	}
}

// groupOf finds the process's group in a tree, controller "" for version 2.
func groupOf(groups []byte, controller string) (string, bool) {
	lines := bufio.NewScanner(bytes.NewReader(groups))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) == 3 && (parts[1] == controller || controller != "" && slices.Contains(strings.Split(parts[1], ","), controller)) {
			return parts[2], true
		}
	}
	return "", false
}

// unescape replaces the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unlimited is more than any machine has: without a limit, version 1 writes its
// largest page count.
const unlimited = 1 << 60

// parseNumber parses a file with one limit, 0 for none.
func parseNumber(b []byte) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 || n >= unlimited {
		return 0
	}
	return n
}

// parseTotal parses the RAM of the machine from /proc/meminfo, in bytes.
func parseTotal(info []byte) int64 {
	_, rest, _ := bytes.Cut(info, []byte("MemTotal:"))
	if f := bytes.Fields(rest); len(f) > 0 {
		if kb, err := strconv.ParseInt(string(f[0]), 10, 64); err == nil && kb > 0 && kb < unlimited>>10 {
			return kb << 10
		}
	}
	return 0
}
