package mail_test

import (
	"fmt"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// One mail from its sender to the end: records go to the ledger, and are applied when they
// are on disk.
func Example() {
	var ledger [][]byte
	var out box.Output
	s := box.New(new(mail.Chains))
	commit := func(rec []byte) {
		ledger = append(ledger, rec)
		if err := s.Apply(box.Place(len(ledger)-1), rec, &out); err != nil {
			fmt.Println(err)
		}
	}
	now := box.Now{Wall: 1_700_000_000_000, Mono: 1}
	s.Start(now, 7, &out)
	commit(out.Records[0])
	commit(box.EncodeBox(s.NewBox(), &box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox}))
	ceo, _ := s.Find("agent:ceo")

	letter, err := proto.AppendLetter(nil, &proto.Letter{
		Class: proto.High, ID: proto.MailID{15: 1}, Created: now.Wall, NotAfter: now.Wall + 60_000, Body: []byte("hello"),
	})
	if err != nil {
		fmt.Println(err)
	}
	commit(box.AppendMail(nil, &box.Mail{Box: ceo, At: now.Wall, Letter: letter}))

	session, err := s.Attach(ceo, 0, "worker", 0, 10)
	if err != nil {
		fmt.Println(err)
	}
	for _, d := range s.Deliver(now, session, 10, nil, &out) {
		m, _ := box.MailOf(ledger[d.Place])
		l, _ := proto.ParseLetter(m.Letter)
		fmt.Printf("%v: %s\n", d.Handle, l.Body)
		out.Reset()
		s.Settle(now, []box.Settlement{{Box: ceo, Handle: d.Handle, Op: box.Ack}}, &out)
	}
	commit(out.Records[0])
	info, _ := s.Info(ceo)
	fmt.Println(info.Waiting, "waiting,", info.EndedAs(box.Done), "done")
	// Output:
	// 1.7.1: hello
	// 0 waiting, 1 done
}
