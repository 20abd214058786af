package mailstream_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/balefire/balefire/api/client/mailstream"
	"github.com/balefire/balefire/wire"
)

// A program reads a mailbox of its node, answers each mail, and is done with those that it
// could answer.
func ExampleClient_ReadMail() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	c := mailstream.New("/run/balefire/node.sock")
	for d, err := range c.ReadMail(ctx, "agent:ceo", mailstream.Read{Reader: "w1", Credit: 16}) {
		if err != nil {
			log.Fatal(err) // ctx is done, or there is no such mailbox
		}
		fmt.Printf("%s: %s\n", d.Mail.ID, d.Mail.Body)
		if _, err := d.Reply(ctx, wire.Mail{Body: []byte("read")}); err != nil {
			_ = d.Nack(30*time.Second, err.Error()) // if it breaks, the mail comes again
			continue
		}
		_ = d.Ack()
	}
}

// A program sends many mails, each from a goroutine of its own: they share batches.
func ExampleClient_Mailer() {
	ctx, cancel := context.WithCancel(context.Background())
	m := mailstream.New("/run/balefire/node.sock").Mailer()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	sent, err := m.Send(ctx, wire.Mail{To: "agent:ceo", Key: "order-7", Dedupe: "invoice-1", Body: []byte("hello")})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(sent.ID)
}
