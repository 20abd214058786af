package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/wire"
)

// A program submits a task to the local node, waits until it ends and reads the
// result. Here given answers stand in for a node; balefire-node config path prints the path of the
// socket of a real one.
func Example() {
	socket, stop := standIn()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New(socket)
	task, err := c.Submit(ctx, wire.Request{
		Target: "laptop", Kind: "shell", Args: []string{"-s"},
		Key: "uname-monday", // a repeated request returns the same task
	})
	if errors.Is(err, client.ErrNodeDown) {
		fmt.Println("start it: balefire-node run")
		return
	}
	check(err)
	ended, err := c.Wait(ctx, task.ID)
	check(err)
	if ended.State != "SUCCESS" {
		fmt.Println(ended.State, ended.Reason)
		return
	}
	result, _, err := c.Result(ctx, task.ID)
	check(err)
	defer result.Close()
	text, err := io.ReadAll(result)
	check(err)
	fmt.Printf("%s %s", ended.State, text)
	// Output: SUCCESS Linux
}

// A program sends a mail to an agent's mailbox; another one, which may be on another machine
// and may have been off, leases it, handles it and acknowledges it.
func Example_mail() {
	socket, stop := standIn()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client.New(socket)
	_, err := c.SendMail(ctx, wire.Mail{To: "agent:ceo@laptop", Key: "order-7", Body: []byte("it has arrived")})
	check(err)

	mails, err := c.LeaseMail(ctx, "agent:ceo", "", wire.LeaseMail{Max: 10, Wait: wire.Wait(30 * time.Second)})
	check(err)
	var done wire.SettleMail
	for _, m := range mails {
		fmt.Printf("%s: %s\n", m.Mail.Key, m.Mail.Body)
		done.Ack = append(done.Ack, m.Lease)
	}
	settled, err := c.SettleMail(ctx, "agent:ceo", "", done)
	check(err)
	fmt.Println(settled[0].Code) // on disk
	// Output:
	// order-7: it has arrived
	// OK
}

func standIn() (socket string, stop func()) {
	dir, err := os.MkdirTemp("", "balefire")
	check(err)
	socket = filepath.Join(dir, "node.sock")
	l, err := net.Listen("unix", socket)
	check(err)
	n := &http.Server{ReadHeaderTimeout: time.Minute, Handler: clienttest.New(map[string]any{
		"POST /v1/tasks":            testSubmitted,
		"GET /v1/tasks/{id}/wait":   testTask,
		"GET /v1/tasks/{id}/result": []byte("Linux\n"),

		"POST /v1/mail":                   testSent,
		"POST /v1/mailboxes/{box}/lease":  wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "7.1.1", Mail: wire.ReceivedMail{Key: "order-7", Body: []byte("it has arrived")}}}},
		"POST /v1/mailboxes/{box}/settle": wire.SettledMail{Items: []wire.SettledItem{{Lease: "7.1.1", Code: wire.SettledOK}}},
	})}
	served := make(chan error, 1)
	go func() { served <- n.Serve(l) }()
	return socket, func() {
		check(n.Close())
		<-served
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
