package node

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/balefire/balefire/wire"
)

func TestTaskAndResultCrossTheMesh(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 10, 5000, 100_000, 300_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			body := make([]byte, size)
			rand.Read(body)
			s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "sum", Body: body})
			if err != nil {
				t.Fatal(err)
			}
			done, err := a.Views.Wait(withTimeout(t, testTimeout), s.ID)
			if err != nil {
				w, _ := a.Explainer.Why(t.Context(), s.ID)
				t.Fatalf("%v: %+v", err, w)
			}
			if done.State != "SUCCESS" {
				t.Fatalf("state %s: %s", done.State, done.Reason)
			}
			if want := "stored accepted started done"; strings.Join(done.Receipts, " ") != want {
				t.Errorf("receipts %v, want %s", done.Receipts, want)
			}
			receipts, err := a.Views.Receipts(t.Context(), s.ID)
			if err != nil || len(receipts) != 4 {
				t.Fatalf("receipts %+v, %v", receipts, err)
			}
			for i, who := range []string{"a", "b", "b", "b"} {
				if rc := receipts[i]; !rc.Verified || rc.Node != who {
					t.Errorf("receipt %+v, want a valid one of %s", rc, who)
				}
			}
			r, _, err := a.Views.Result(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			sum := sha256.Sum256(body)
			if err != nil || string(got) != hex.EncodeToString(sum[:]) {
				t.Errorf("result %q, %v", got, err)
			}
		})
	}
}

func TestLargeResultReachesHome(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("echo", wire.TypeEcho)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4000, 20_000, 250_000, 2 << 20} {
		body := make([]byte, size)
		rand.Read(body)
		s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "echo", Stream: bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		done, err := a.Views.Wait(withTimeout(t, testTimeout), s.ID)
		if err != nil || done.State != "SUCCESS" {
			t.Fatalf("%d bytes: %v, state %s %s", size, err, done.State, done.Reason)
		}
		r, _, err := a.Views.Result(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes arrived as %d, %v", size, len(got), err)
		}
	}
}

// A body stream that ends early creates no task, however much of it has arrived.
func TestTruncatedBodyIsRefused(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("echo", wire.TypeEcho)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 100, 20_000, 400_000} {
		cut := io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(io.ErrUnexpectedEOF))
		if s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "echo", Stream: cut}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes and an error: %+v, %v", size, s, err)
		}
	}
	if p, err := a.Views.Tasks(wire.Query{}); err != nil || len(p.Items) > 0 {
		t.Errorf("%d tasks, %v", len(p.Items), err)
	}
}

func TestNodeSendsToItself(t *testing.T) {
	a, _ := pair(t, nil)
	if err := a.Handlers.Add(t.Context(), allow("echo", wire.TypeEcho)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{100, 400_000} {
		s, err := a.Submit(t.Context(), wire.Request{Target: "a", Kind: "echo", Body: make([]byte, size)})
		if err != nil {
			t.Fatal(err)
		}
		done, err := a.Views.Wait(withTimeout(t, testTimeout), s.ID)
		if err != nil || done.State != "SUCCESS" || done.ResultSize != uint64(size) {
			t.Fatalf("%v, state %s %s, %d bytes", err, done.State, done.Reason, done.ResultSize)
		}
	}
}

// A task for a node that is down waits, also over a restart of its home, and is delivered when
// the node is up (I1).
func TestTaskWaitsForItsNode(t *testing.T) {
	a, b := pair(t, func(_ string, c *Config) { c.Net.Listen = []string{freeAddr(t)} })
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	b.halt()
	s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "sum", Body: []byte("later")})
	if err != nil {
		t.Fatal(err)
	}
	a.halt()
	a = start(t, a.cfg)
	start(t, b.cfg)
	done, err := a.Views.Wait(withTimeout(t, testTimeout), s.ID)
	if err != nil || done.State != "SUCCESS" {
		t.Fatalf("%v, state %s %s", err, done.State, done.Reason)
	}
}
