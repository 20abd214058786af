//go:build linux

package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Paths in the image.
const (
	program = "/balefire-node"
	folder  = "/var/lib/balefire"
	tickets = "/tickets" // shared by all nodes of the lab
)

// configuration is what every node of the laboratory gets at its first start.
//
//go:embed node.yaml
var configuration []byte

// node creates the node's folder at the first start, then becomes the node.
func node(args []string) error {
	if len(args) == 0 {
		return errors.New("node wants a name")
	}
	name, founds := args[0], len(args) > 1 && args[1] == "found"
	if _, err := os.Stat(filepath.Join(folder, "config.yaml")); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(filepath.Join(folder, "config.yaml"), configuration, 0o644); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "identity", "membership.json")); errors.Is(err, fs.ErrNotExist) {
		if err := pair(name, founds); err != nil {
			return err
		}
	}
	return syscall.Exec(program, []string{program, "run"}, os.Environ())
}

func pair(name string, founds bool) error {
	if founds {
		_, err := tell("", "init", "--new-mesh", "--name", name)
		return err
	}
	ticket, err := await(filepath.Join(tickets, name))
	if err != nil {
		return err
	}
	if _, err := tell(ticket, "join", "-"); err != nil {
		return err
	}
	return os.WriteFile(joined(name), nil, 0o644)
}

// joined is the file that exists once a node has joined.
func joined(name string) string { return filepath.Join(tickets, name+".joined") }

// await returns the content of a file once it exists.
func await(path string) (string, error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stop)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return string(b), err
		}
		select {
		case <-tick.C:
		case <-stop:
			return "", fmt.Errorf("stopped while it waited for a ticket at %s", path)
		}
	}
}

// invite creates tickets on the node of this folder; NAME=admin also makes the node an
// admin.
func invite(names []string) error {
	for _, name := range names {
		name, role, _ := strings.Cut(name, "=")
		ask := []string{"invite", "--name", name}
		if role != "" {
			ask = append(ask, "--roles", "send,work,relay,"+role)
		}
		if _, err := os.Stat(joined(name)); err == nil {
			continue
		}
		ticket, err := tell("", ask...)
		if err != nil {
			return err
		}
		path := filepath.Join(tickets, name)
		if err := os.WriteFile(path+".part", []byte(ticket), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".part", path); err != nil { // atomically
			return err
		}
	}
	return nil
}

// tell runs a command of the node and returns its output.
func tell(in string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("balefire-node %s: %w", args[0], err)
	}
	return string(out), nil
}

// notes is the file that handlers write to.
const notes = folder + "/marks"

// mark writes the task of this run, in one durable write: a run that ended successfully has
// left its line.
func mark([]string) error {
	f, err := os.OpenFile(notes, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, os.Getenv("BALEFIRE_TASK_ID"))
	return errors.Join(err, f.Sync(), f.Close())
}

// sleep returns its input after a delay: a task that takes time.
func sleep(args []string) error {
	if len(args) != 1 {
		return errors.New("sleep wants one duration, as in: sleep 2s")
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	time.Sleep(d)
	_, err = io.Copy(os.Stdout, os.Stdin)
	return err
}

func marks([]string) error {
	b, err := os.ReadFile(notes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = os.Stdout.Write(b)
	}
	return err
}
