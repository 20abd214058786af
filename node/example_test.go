package node_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

// Two nodes in one program: the first founds a mesh, the second joins it with a
// ticket and hashes what the first sends.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "balefire")
	check(err)
	defer os.RemoveAll(dir)

	config := func(name string) node.Config {
		cfg := node.DefaultConfig(filepath.Join(dir, name))
		cfg.Net.Listen = []string{"/ip4/127.0.0.1/tcp/0"}
		cfg.Logger = slog.New(slog.DiscardHandler)
		return cfg
	}
	run := func(cfg node.Config) (n *node.Node, stop func()) {
		n, err := node.New(cfg)
		check(err)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		return n, func() { cancel(); check(<-done) }
	}

	laptop, server := config("laptop"), config("server")
	server.Handle("greet", handler.Func(func(_ context.Context, r *handler.Run) *handler.Result {
		name, err := io.ReadAll(r.Body)
		if err != nil {
			return &handler.Result{Outcome: handler.Retry, Reason: err.Error()}
		}
		return &handler.Result{Outcome: handler.Success, Output: fmt.Appendf(nil, "hello, %s", name)}
	}), "peer:laptop")

	_, err = pairing.Init(pairing.InitOptions{Dir: laptop.Dir, Name: "laptop", NewMesh: true})
	check(err)
	a, stopA := run(laptop)
	defer stopA()
	ticket, err := a.Pairing.Invite(ctx, wire.InviteOptions{})
	check(err)
	_, err = node.Joiner(server).WithTicket(ctx, ticket.Ticket, "server")
	check(err)
	_, stopB := run(server)
	defer stopB()

	task, err := a.Submit(ctx, wire.Request{Target: "server", Kind: "greet", Body: []byte("balefire")})
	check(err)
	_, err = a.Views.Wait(ctx, task.ID)
	check(err)
	body, done, err := a.Views.Result(ctx, task.ID)
	check(err)
	defer body.Close()
	answer, err := io.ReadAll(body)
	check(err)
	fmt.Println(done.State, done.Receipts)
	fmt.Printf("%s\n", answer)
	// Output:
	// SUCCESS [stored accepted started done]
	// hello, balefire
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
