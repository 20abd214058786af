package mail

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// BenchmarkMail sends mails of 1 KiB, 64 senders of 16 a call, and has 4 readers lease and
// acknowledge them: one operation is one mail from its sender to its durable end.
func BenchmarkMail(b *testing.B) {
	const senders, batch, readers, credit = 64, 16, 4, 1024
	log, err := ledger.Open(b.TempDir()+"/ledger", ledger.Config{Reserve: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	br, err := New(log, Config{Boot: 1})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var broker sync.WaitGroup
	broker.Go(func() { br.Run(ctx) })
	defer broker.Wait()
	defer cancel()
	if err := br.SetBox(ctx, box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Mails: box.MaxMails, Bytes: 1 << 40}); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	body := make([]byte, 1<<10)
	rounds := (b.N + batch - 1) / batch
	var done, sent atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	var work sync.WaitGroup
	for range senders {
		work.Go(func() {
			for sent.Add(1) <= int64(rounds) {
				items := make([]Item, batch)
				for i := range items {
					l, err := proto.AppendLetter(nil, &proto.Letter{
						Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: body,
					})
					if err != nil {
						b.Error(err)
					}
					items[i] = Item{Box: "agent:ceo", Letter: l}
				}
				if out, err := br.Send(ctx, items, false); err != nil || out[0].Code != proto.CodeOK {
					b.Errorf("%+v, %v", out, err)
					return
				}
			}
		})
	}
	reading, stop := context.WithCancel(ctx)
	for range readers {
		s, err := br.Read(ctx, Reading{Box: "agent:ceo", Credit: credit})
		if err != nil {
			b.Fatal(err)
		}
		work.Go(func() {
			var got []Delivery
			for {
				var err error
				if got, err = s.Next(reading, 256, got[:0]); err != nil {
					return
				}
				acks := make([]Settlement, len(got))
				for i, d := range got {
					acks[i] = Settlement{Handle: d.Handle, Op: box.Ack}
				}
				if _, err := br.Settle(ctx, "agent:ceo", "", acks); err != nil {
					b.Error(err)
				}
				if done.Add(int64(len(got))) >= int64(rounds*batch) {
					stop()
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	b.ReportMetric(float64(rounds*batch)/b.Elapsed().Seconds(), "mails/s")
	stop()
}
