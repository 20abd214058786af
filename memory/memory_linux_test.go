package memory

import (
	"testing"
	"testing/fstest"
)

const ram = "MemTotal:        1000000 kB\nMemFree: 1 kB\n"

func files(kv ...string) fstest.MapFS {
	m := fstest.MapFS{"proc/meminfo": {Data: []byte(ram)}}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return m
}

const (
	v2     = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	v1     = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	docker = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)

// TestSmallestLimitCounts: the smallest of the RAM and the limits of the process's
// control group and its parents counts, for both versions of control groups, and nothing
// unreadable is taken for a limit.
func TestSmallestLimitCounts(t *testing.T) {
	const m, c = "proc/self/mountinfo", "proc/self/cgroup"
	for _, tt := range []struct {
		name string
		fs   fstest.MapFS
		want Limit
	}{
		{"no groups", files(), Limit{1_000_000 << 10, false}},
		{"own group", files(m, v2, c, "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "268435456\n"), Limit{256 << 20, true}},
		{"no limit", files(m, v2, c, "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n"), Limit{1_000_000 << 10, false}},
		{"a parent is tighter", files(m, v2, c, "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "268435456\n", "sys/fs/cgroup/a/memory.max", "134217728\n"), Limit{128 << 20, true}},
		{"throttled below its limit", files(m, v2, c, "0::/a\n", "sys/fs/cgroup/a/memory.max", "268435456\n", "sys/fs/cgroup/a/memory.high", "134217728\n"), Limit{128 << 20, true}},
		{"more than the RAM", files(m, v2, c, "0::/a\n", "sys/fs/cgroup/a/memory.max", "9000000000000\n"), Limit{1_000_000 << 10, false}},
		{"version 1", files(m, v1, c, "4:memory:/x/y\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "134217728\n", "sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n"), Limit{128 << 20, true}},
		{"version 1 in a container", files(m, docker, c, "4:cpu,memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"), Limit{128 << 20, true}},
		{"both versions", files(m, v1+v2, c, "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "134217728\n"), Limit{128 << 20, true}},
		{"outside the mount", files(m, docker, c, "4:memory:/docker/other\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"), Limit{128 << 20, true}},
		{"nonsense", files(m, "x\n"+v2, c, "0::/../..\nno\n", "sys/fs/cgroup/memory.max", "many\n"), Limit{1_000_000 << 10, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := read(tt.fs); got != tt.want {
				t.Errorf("limit %+v, want %+v", got, tt.want)
			}
		})
	}
	if got := read(fstest.MapFS{}); got != (Limit{}) {
		t.Errorf("without files: %+v", got)
	}
}

// FuzzLimit: no content of the kernel's files causes a panic or a negative limit.
func FuzzLimit(f *testing.F) {
	f.Add(v1+v2, "4:memory:/x\n0::/\n", "134217728\n", ram)
	f.Fuzz(func(t *testing.T, mounts, groups, limit, info string) {
		l := read(fstest.MapFS{
			"proc/meminfo": {Data: []byte(info)}, "proc/self/mountinfo": {Data: []byte(mounts)}, "proc/self/cgroup": {Data: []byte(groups)},
			"sys/fs/cgroup/memory.max": {Data: []byte(limit)}, "sys/fs/cgroup/memory/x/memory.limit_in_bytes": {Data: []byte(limit)},
		})
		if l.Bytes < 0 {
			t.Errorf("limit %d", l.Bytes)
		}
	})
}

func TestDefault(t *testing.T) {
	const most = 384 << 20
	for _, tt := range []struct {
		l    Limit
		want int64
	}{
		{Limit{}, most},
		{Limit{128 << 20, true}, 80 << 20},
		{Limit{256 << 20, true}, 160 << 20},
		{Limit{512 << 20, true}, 320 << 20},
		{Limit{8 << 30, true}, most},
		{Limit{512 << 20, false}, 256 << 20},
		{Limit{8 << 30, false}, most},
		{Limit{1 << 20, true}, minDefault},
	} {
		if got := tt.l.Default(most); got != tt.want {
			t.Errorf("default of %+v is %d, want %d", tt.l, got, tt.want)
		}
	}
}
