package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"balefire-node": main})
}

// TestScripts runs every script in testdata against the real program, which the
// test binary runs in child processes.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			for _, name := range []string{"PORT1", "PORT2", "PORT3"} {
				port, err := freePort()
				if err != nil {
					return err
				}
				e.Setenv(name, strconv.Itoa(port))
			}
			e.Setenv("BALEFIRE_STORE_SEGMENT", "4MiB")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": cmdExits, "set": cmdSet, "json": cmdJSON, "post": cmdPost, "big": cmdBig, "edit": cmdEdit,
		},
	})
}

// exits CODE PROGRAM ARG... runs a program and compares its exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v: %v", args[1:], err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%v: exit code %d, want %s", args[1:], got, args[0])
	}
}

// set NAME FILE sets a variable to the content of a file or of stdout.
func cmdSet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: set NAME FILE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// json [KEY VALUE] checks that the last output is a single JSON value, and
// optionally one field of its object.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		ts.Fatalf("stdout is not JSON: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("stdout is more than one JSON value")
	}
	if len(args) != 2 {
		return
	}
	object, _ := v.(map[string]any)
	got, ok := object[args[0]]
	text, err := json.Marshal(got)
	ts.Check(err)
	if same := ok && strings.Trim(string(text), `"`) == args[1]; same == neg {
		ts.Fatalf("%s is %s", args[0], text)
	}
}

// post SOCKET PATH FILE posts a JSON document to a node, like curl.
func cmdPost(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: post SOCKET PATH FILE")
	}
	socket := ts.MkAbs(args[0])
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	res, err := c.Post("http://node"+args[1], "application/json", strings.NewReader(ts.ReadFile(args[2])))
	ts.Check(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	ts.Check(err)
	_, err = ts.Stdout().Write(append([]byte(res.Status+"\n"), b...))
	ts.Check(err)
}

// big FILE SIZE PREFIX SUFFIX writes a file with SIZE letters between PREFIX and SUFFIX.
func cmdBig(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: big FILE SIZE PREFIX SUFFIX")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[2]+strings.Repeat("A", n)+args[3]), 0o600))
}

// edit FILE OLD NEW replaces text in a file.
func cmdEdit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: edit FILE OLD NEW")
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(filepath.Clean(ts.MkAbs(args[0])), []byte(strings.Replace(text, args[1], args[2], 1)), 0o600))
}
