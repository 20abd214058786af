package command

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An account is the user and the groups that a program runs as.
type account struct {
	uid, gid int
	groups   []int // besides gid
	name     string
	home     string
}

// accountOf looks up USER[:GROUP], by names or numbers. It refuses accounts that
// would have the rights of the node.
func accountOf(runAs string) (*account, error) {
	who, group, named := strings.Cut(runAs, ":")
	a := &account{name: who, home: "/"}
	u, err := user.Lookup(who)
	if err != nil {
		u, err = user.LookupId(who)
	}
	switch uid, numeric := strconv.Atoi(who); {
	case err == nil:
		a.uid, _ = strconv.Atoi(u.Uid)
		a.gid, _ = strconv.Atoi(u.Gid)
		a.name, a.home = u.Username, u.HomeDir
		ids, err := u.GroupIds()
		if err != nil {
			return nil, fmt.Errorf("run_as: the groups of %s: %w", who, err)
		}
		for _, id := range ids {
			if g, err := strconv.Atoi(id); err == nil && g != a.gid {
				a.groups = append(a.groups, g)
			}
		}
	case numeric == nil && named && uid >= 0:
		a.uid = uid
	default:
		return nil, fmt.Errorf("run_as: there is no user %.100q on this machine: create it, or write UID:GID", who)
	}
	if named {
		if a.gid, err = groupOf(group); err != nil {
			return nil, err
		}
		a.groups = nil
	}
	groups := append([]int{a.gid}, a.groups...)
	switch {
	case a.uid == 0 || slices.Contains(groups, 0):
		return nil, fmt.Errorf("run_as: %.100q is root or in its group: a handler must not have more rights than the node", runAs)
	case a.uid == os.Geteuid():
		return nil, fmt.Errorf("run_as: %.100q is the node's own user: leave run_as out, or name another one", runAs)
	case os.Getegid() != 0 && slices.Contains(groups, os.Getegid()):
		return nil, fmt.Errorf("run_as: %.100q is in the node's own group, which may use the node's socket: write USER:GROUP with another group", runAs)
	}
	return a, nil
}

func groupOf(text string) (int, error) {
	if g, err := user.LookupGroup(text); err == nil {
		return strconv.Atoi(g.Gid)
	}
	if gid, err := strconv.Atoi(text); err == nil && gid >= 0 {
		return gid, nil
	}
	return 0, fmt.Errorf("run_as: there is no group %.100q on this machine", text)
}

// MayRunAs returns why this node cannot run programs as USER[:GROUP] in folders
// below dir, and what to do. An empty dir is not checked.
func MayRunAs(runAs, dir string) error {
	a, err := accountOf(runAs)
	if err != nil {
		return err
	}
	return a.runAs(func() error {
		if dir == "" {
			return nil
		}
		if _, err := os.Stat(dir + "/."); err != nil {
			return fmt.Errorf("run_as: %s cannot reach %s, where runs have their folders: let others pass through, and no more, by chmod 0711 on each folder above it (StateDirectoryMode=0711 in packaging/systemd/run-as.conf): %w", a.name, dir, err)
		}
		return nil
	})
}

// runAs calls f with the account's rights to files and processes, on a thread
// that ends afterwards. A nil account is the node's own.
func (a *account) runAs(f func() error) error {
	if a == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be reused
		err := a.dropPrivileges()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// dropPrivileges changes the user of this thread only.
func (a *account) dropPrivileges() error {
	if runtime.GOARCH == "386" || runtime.GOARCH == "arm" {
		return errors.New("run_as needs a machine of 64 bits: leave it out") // the system call takes 16-bit ids there
	}
	const same = ^uintptr(0)
	_, _, err := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(a.gid), same)
	if err == 0 {
		_, _, err = unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(a.uid), same)
	}
	if err != 0 {
		return fmt.Errorf("run_as: this node may not become another user: it needs the capabilities CAP_SETUID and CAP_SETGID, which packaging/systemd/run-as.conf gives it: %w", err)
	}
	return nil
}

// credential returns the credential to start a program as a.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	for _, g := range a.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// privateFolder is the account's own folder inside that of a run: no other user
// can read it.
const privateFolder = "w"

// makeFolder creates a folder inside that of the run that only the account may
// read.
func (a *account) makeFolder(run string) (string, error) {
	if run == "" {
		return "", errors.New("the run has no folder")
	}
	dir := filepath.Join(run, privateFolder)
	if err := os.Chmod(run, 0o733); err != nil { // its name is secret
		return "", err
	}
	err := a.runAs(func() error { return os.Mkdir(dir, 0o700) })
	if err := errors.Join(err, os.Chmod(run, 0o711)); err != nil {
		return "", err
	}
	return dir, nil
}

// RemoveAll removes the folder of a run, whatever the modes of the folders in it are,
// including files left by a program that ran as another user.
func RemoveAll(run string) error {
	dir := filepath.Join(run, privateFolder)
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
			a := &account{uid: int(st.Uid), gid: int(st.Gid)}
			if err := a.runAs(func() error { return empty(dir) }); err != nil {
				return err
			}
			return os.RemoveAll(run) // the node changes no mode where another user can put a link
		}
	}
	unlock(run)
	return os.RemoveAll(run)
}

// empty removes the contents of a folder owned by this user, whatever their modes
// are.
func empty(dir string) error {
	unlock(dir)
	left, err := os.ReadDir(dir)
	for _, e := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// dropInherited withholds this thread's capabilities from the programs that it
// starts: only the node needs them. They would pass on as ambient ones, or as
// inheritable ones to a program file that asks for them.
func dropInherited() {
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // a kernel without ambient capabilities grants none
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return // without capabilities to keep there are none to drop
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	_ = unix.Capset(&header, &data[0]) // dropping is always allowed
}
