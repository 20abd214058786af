//go:build unix

package identity

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A restarted node loads all its keys, including old sealing keys, and only it can read
// the files.
func TestKeysSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	made, err := CreateKeys(dir, today)
	if err != nil {
		t.Fatal(err)
	}
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		if err := made.Rotate(suite, today); err != nil { // all in one second
			t.Fatal(err)
		}
	}
	loaded, err := LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Peer() != made.Peer() || !loaded.PrivateKey().Equal(made.PrivateKey()) {
		t.Error("loaded the key of another node")
	}
	a, b := made.SealingKey(), loaded.SealingKey()
	if a.ID != b.ID || a.Seq != uint64(today.Unix())+2 || a.Seq != b.Seq || !a.NotAfter.Equal(b.NotAfter) {
		t.Errorf("current key = %+v, want %+v", b, a)
	}
	if !bytes.Equal(made.KeyRecord().GetSignature(), loaded.KeyRecord().GetSignature()) {
		t.Error("the key record changed")
	}
	for id, old := range made.sealing {
		if now, ok := loaded.find(id); !ok || now.record.Seq != old.record.Seq {
			t.Errorf("sealing key %d was not loaded", old.record.Seq)
		}
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		info, _ := e.Info()
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s was left behind", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestKeysAreNeverOverwritten(t *testing.T) {
	dir := t.TempDir()
	first, err := CreateKeys(dir, today)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CreateKeys(dir, today); !errors.Is(err, ErrExists) {
		t.Errorf("second CreateKeys: %v, want ErrExists", err)
	}
	if _, err := CreateRoot(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateRoot(dir); !errors.Is(err, ErrExists) {
		t.Errorf("second CreateRoot: %v, want ErrExists", err)
	}
	again, err := LoadKeys(dir)
	if err != nil || again.Peer() != first.Peer() {
		t.Errorf("the first keys are gone: %v", err)
	}
}

// If creation is interrupted before the node key is written, the next one succeeds in the
// same folder.
func TestCreateKeysAfterACrash(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateKeys(dir, today); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, nodeKeyFile)); err != nil {
		t.Fatal(err)
	}
	k, err := CreateKeys(dir, today)
	if err != nil {
		t.Fatal(err)
	}
	if loaded, err := LoadKeys(dir); err != nil || loaded.Peer() != k.Peer() || loaded.SealingKey().Seq != 2 {
		t.Errorf("loaded after a crash: %v", err)
	}
}

func TestRootSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadRoot(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load without a root: %v", err)
	}
	made, err := CreateRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadRoot(dir)
	if err != nil || loaded.Mesh().ID != made.Mesh().ID {
		t.Errorf("loaded the root of another mesh: %v", err)
	}
}

// A sealing key made after a restore of an older copy has a higher number than all that were
// lost: peers keep the one with the highest number that they know. A clock that was wrong when
// a key was made does not end that.
func TestNewKeyAfterARestoreIsTheNewest(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	if _, err := CreateKeys(dir, today); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(copied, sealingDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nodeKeyFile, filepath.Join(sealingDir, "1.key")} {
		copyFile(t, filepath.Join(dir, name), filepath.Join(copied, name))
	}
	day := 24 * time.Hour
	last := func(dir string, at ...time.Duration) uint64 {
		k := loadedKeys(t, dir)
		for _, d := range at {
			before := k.SealingKey().Seq
			if err := k.Rotate(0, today.Add(d)); err != nil || k.SealingKey().Seq <= before {
				t.Fatalf("after key %d: %d, %v", before, k.SealingKey().Seq, err)
			}
		}
		return k.SealingKey().Seq
	}
	lost := last(dir, 7*day, 14*day, 21*day, 28*day)
	if got := last(copied, 28*day+time.Hour); got <= lost {
		t.Errorf("the new key has number %d, a lost one had %d", got, lost)
	}
	last(copied, 20*365*day, 35*day, -100*365*day, 42*day)
}

// The same randomness yields the same node, for reproducible tests.
func TestNewKeysFollowTheirSeed(t *testing.T) {
	seed := bytes.Repeat([]byte("balefire"), 100)
	a, b := NewKeys(bytes.NewReader(seed), today), NewKeys(bytes.NewReader(seed), today)
	if a.Peer() != b.Peer() || a.SealingKey().ID != b.SealingKey().ID {
		t.Error("one seed, two nodes")
	}
	if one, two := NewKeys(nil, today), NewKeys(nil, today); one.Peer() == two.Peer() {
		t.Error("two nodes with one key")
	}
}

// The bad-input family of key files: each is refused with a typed error that contains its
// path and what to do.
func TestBadKeyFilesAreRefused(t *testing.T) {
	pem := func(kind, body string) string {
		return "-----BEGIN " + kind + "-----\n" + body + "\n-----END " + kind + "-----\n"
	}
	write := func(b string) func(t *testing.T, path string, good []byte) {
		return func(t *testing.T, path string, _ []byte) { rewrite(t, path, []byte(b)) }
	}
	cut := func(f func(good []byte) []byte) func(t *testing.T, path string, good []byte) {
		return func(t *testing.T, path string, good []byte) { rewrite(t, path, f(bytes.Clone(good))) }
	}
	mode := func(m fs.FileMode) func(*testing.T, string, []byte) {
		return func(t *testing.T, path string, _ []byte) {
			if err := os.Chmod(path, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name  string
		spoil func(t *testing.T, path string, good []byte)
		says  string
	}{
		{"readable by all", mode(0o644), "chmod 600"},
		{"open to all", mode(0o777), "chmod 600"},
		{"readable by the group", mode(0o640), "chmod 600"},
		{"writable by the group", mode(0o620), "chmod 600"},
		{"writable by others", mode(0o602), "chmod 600"},
		{"executable by others", mode(0o601), "chmod 600"},
		{"a symbolic link", func(t *testing.T, path string, good []byte) {
			move(t, path, path+".real")
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"a link to nowhere", func(t *testing.T, path string, good []byte) {
			move(t, path, path+".gone")
			if err := os.Symlink(path+".nowhere", path); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"a folder", func(t *testing.T, path string, good []byte) {
			move(t, path, path+".real")
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "regular file"},
		{"empty", write(""), "empty"},
		{"one byte", write("-"), "truncated"},
		{"zeros, as after a power cut", write(strings.Repeat("\x00", 200)), "not a key file"},
		{"cut in half", cut(func(b []byte) []byte { return b[:len(b)/2] }), "truncated"},
		{"without its last line", cut(func(b []byte) []byte { return b[:bytes.LastIndex(b, []byte("-----END"))] }), "truncated"},
		{"with text in front", cut(func(b []byte) []byte { return append([]byte("hello\n"), b...) }), "not a key file"},
		{"with text at the end", cut(func(b []byte) []byte { return append(b, "hello\n"...) }), "not a key file"},
		{"twice", cut(func(b []byte) []byte { return append(b, b...) }), "not a key file"},
		{"too large", cut(func(b []byte) []byte { return append(b, make([]byte, maxKeyFile)...) }), "larger"},
		{"one letter changed", cut(func(b []byte) []byte {
			i := bytes.IndexByte(b, '\n') + 5
			if b[i] == 'A' {
				b[i] = 'B'
			} else {
				b[i] = 'A'
			}
			return b
		}), "checksum"},
		{"of another program", write(pem("PRIVATE KEY", "MC4CAQAwBQYDK2VwBCIEIPT7lYQ+V4VQ+nIYJ8rzk8VJTv0yJ9CBpyVyXlN7DQ==")), "PRIVATE KEY"},
		{"without a body", write(pem(nodeKeyType, "")), ""},
		{"with bad base64", write(pem(nodeKeyType, "!!!!")), "not a key file"},
	}
	for _, file := range []string{nodeKeyFile, filepath.Join(sealingDir, "1.key")} {
		for _, tt := range tests {
			t.Run(file+"/"+tt.name, func(t *testing.T) {
				dir := t.TempDir()
				if _, err := CreateKeys(dir, today); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, file)
				good, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				tt.spoil(t, path, good)
				_, err = LoadKeys(dir)
				if !errors.Is(err, ErrKeyFile) {
					t.Fatalf("err = %v, want ErrKeyFile", err)
				}
				if !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %q lacks %q or the file name", err, tt.says)
				}
				if _, err := CreateKeys(dir, today); file == nodeKeyFile && !errors.Is(err, ErrExists) {
					t.Errorf("a bad key was overwritten: %v", err)
				}
			})
		}
	}
}

// Intact key files with the wrong content are refused.
func TestMisplacedKeysAreRefused(t *testing.T) {
	dir := t.TempDir()
	k, err := CreateKeys(dir, today)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CreateRoot(dir); err != nil {
		t.Fatal(err)
	}
	refused := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, ErrKeyFile) {
			t.Errorf("%s: %v, want ErrKeyFile", name, err)
		}
	}
	other := t.TempDir()
	copyFile(t, filepath.Join(dir, rootKeyFile), filepath.Join(other, nodeKeyFile))
	_, err = LoadKeys(other)
	refused("the mesh root as a node key", err)

	other = t.TempDir()
	copyFile(t, filepath.Join(dir, nodeKeyFile), filepath.Join(other, nodeKeyFile))
	_, err = LoadKeys(other)
	refused("no sealing key", err)

	if err := os.Mkdir(filepath.Join(other, sealingDir), 0o700); err != nil {
		t.Fatal(err)
	}
	copyFile(t, sealingFile(dir, 1), sealingFile(other, 2))
	_, err = LoadKeys(other)
	refused("a sealing key under another number", err)

	halves := bytes.Clone(k.private)
	halves[40] ^= 1
	other = t.TempDir()
	if err := writeKeyFile(filepath.Join(other, nodeKeyFile), nodeKeyType, halves); err != nil {
		t.Fatal(err)
	}
	_, err = LoadKeys(other)
	refused("halves of two different keys", err)

	other = t.TempDir()
	if err := writeKeyFile(filepath.Join(other, nodeKeyFile), nodeKeyType, halves[:32]); err != nil {
		t.Fatal(err)
	}
	_, err = LoadKeys(other)
	refused("a key of 32 bytes", err)

	if err := writeKeyFile(sealingFile(dir, 2), sealingType, append([]byte{9, 0, 0, 0, 0, 0, 0, 0, 2}, make([]byte, 48)...)); err != nil {
		t.Fatal(err)
	}
	_, err = LoadKeys(dir)
	refused("a sealing key of an unknown suite", err)
}

// A file owned by another user is refused even if its mode is right.
func TestForeignOwnerIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateKeys(dir, today); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, nodeKeyFile)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(path, info, os.Geteuid()); err != nil {
		t.Errorf("the owner is refused: %v", err)
	}
	if err := checkOwner(path, info, os.Geteuid()+1); !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), "chown") {
		t.Errorf("another user: %v", err)
	}
}

// Files whose names are not key names are ignored.
func TestOtherFilesNextToTheKeysAreIgnored(t *testing.T) {
	dir := t.TempDir()
	if _, err := CreateKeys(dir, today); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"1.key~", "01.key", "0.key", "x.key", ".2.key.abc", "README"} {
		rewrite(t, filepath.Join(dir, sealingDir, name), []byte("nothing"))
	}
	if k, err := LoadKeys(dir); err != nil || k.SealingKey().Seq != 1 {
		t.Errorf("LoadKeys: %v", err)
	}
}

// A key record is valid for its peer, and within its period.
func TestKeyRecord(t *testing.T) {
	k, other := NewKeys(nil, today), NewKeys(nil, today)
	first := k.KeyRecord()
	r, err := VerifyKeyRecord(first, k.Peer(), today)
	if err != nil || r.ID != k.SealingKey().ID || r.Peer != k.Peer() || r.Seq != 1 {
		t.Fatalf("good record: %+v, %v", r, err)
	}
	if err := k.Rotate(SuiteHybridAES, today); err != nil {
		t.Fatal(err)
	}
	second, err := VerifyKeyRecord(k.KeyRecord(), k.Peer(), today)
	if err != nil || second.Seq != uint64(today.Unix()) || second.Suite != SuiteHybridAES {
		t.Fatalf("rotated record: %+v, %v", second, err)
	}
	if r, err := VerifyKeyRecord(first, k.Peer(), r.NotAfter.Add(time.Second)); !errors.Is(err, ErrExpired) || r.Seq != 1 {
		t.Errorf("expired: %+v, %v", r, err)
	}
	if _, err := VerifyKeyRecord(first, other.Peer(), today); !errors.Is(err, ErrSignature) {
		t.Errorf("of another peer: %v", err)
	}
	var zero proto.PeerID
	if _, err := VerifyKeyRecord(first, zero, today); err == nil {
		t.Error("without a peer: accepted")
	}
}

func rewrite(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, to, b)
}

// A superseded sealing key opens content sealed to it until none can be left and is then
// removed from disk. For the second half of that time nothing new may be sealed to it.
func TestExpireRemovesUnneededKeys(t *testing.T) {
	dir, start := t.TempDir(), time.Unix(1_700_000_000, 0)
	k, err := CreateKeys(dir, start)
	if err != nil {
		t.Fatal(err)
	}
	header := []byte("header")
	wrapped, err := NewSealer(clock.System()).WrapKey(header, k.SealingKey(), [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	day := 24 * time.Hour
	for week := range 20 {
		now := start.Add(time.Duration(week) * 7 * day)
		if week > 0 {
			if err := k.Rotate(0, now); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := k.Expire(now); err != nil {
			t.Fatal(err)
		}
		// superseded after one week, outdated 30 days later, removed after 60
		fresh := loadedKeys(t, dir)
		_, err := fresh.unwrapKey(header, wrapped)
		if opens, want := err == nil, week <= 9; opens != want {
			t.Errorf("in week %d it opens: %v, want %v", week, opens, want)
		}
		if got, want := fresh.outdated(wrapped, now), week >= 6 && week <= 9; got != want {
			t.Errorf("in week %d it is outdated: %v, want %v", week, got, want)
		}
		files, err := sealingFiles(dir)
		if err != nil || len(files) > 10 {
			t.Errorf("in week %d there are %d keys, %v", week, len(files), err)
		}
	}
}

// A key that was made under a clock that was behind does not make the older keys removable.
func TestKeysMadeUnderAClockThatWasBehind(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	k := NewKeys(nil, start)
	header := []byte("header")
	wrapped, err := NewSealer(clock.System()).WrapKey(header, k.SealingKey(), [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	for _, now := range []time.Time{start.Add(-70 * day), start.Add(day)} {
		if err := k.Rotate(0, now); err != nil {
			t.Fatal(err)
		}
		if n, err := k.Expire(now); n != 0 || err != nil {
			t.Errorf("%d keys were removed, %v", n, err)
		}
	}
	if _, err := k.unwrapKey(header, wrapped); err != nil {
		t.Error(err)
	}
}

// loadedKeys reads the keys in dir again.
func loadedKeys(t *testing.T, dir string) *Keys {
	t.Helper()
	k, err := LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
