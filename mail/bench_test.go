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
				if got, _, err = s.NextInto(reading, 256, got[:0], nil); err != nil {
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

// BenchmarkForward sends mails of 1 KiB, 16 senders of 16 a call, from one broker to a box of
// another: one operation is one mail from its sender until its origin knows that the home has
// it on disk.
func BenchmarkForward(b *testing.B) {
	const senders, batch, window = 16, 16, 16
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	start := func() *Broker {
		log, err := ledger.Open(b.TempDir()+"/ledger", ledger.Config{Reserve: -1})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { log.Close() })
		br, err := New(log, Config{Boot: 1, Self: homeID})
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() { br.Run(ctx) })
		return br
	}
	origin, home := start(), start()
	defer running.Wait()
	defer cancel()
	if err := home.SetBox(ctx, box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Mails: box.MaxMails, Bytes: 1 << 40}); err != nil {
		b.Fatal(err)
	}
	lane, err := origin.Lane(ctx, homeID)
	if err != nil {
		b.Fatal(err)
	}
	now, body := time.Now(), make([]byte, 1<<10)
	rounds := (b.N + batch - 1) / batch
	spool := make(chan struct{}, 50_000/batch) // calls whose mail may be in the spool
	arrivals := make(chan *Arrival, window)
	var sent atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	var work sync.WaitGroup
	for range senders {
		work.Go(func() {
			for sent.Add(1) <= int64(rounds) {
				spool <- struct{}{}
				out := make([]Outgoing, batch)
				for i := range out {
					l, err := proto.AppendLetter(nil, &proto.Letter{
						Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: body,
					})
					if err != nil {
						b.Error(err)
					}
					out[i] = Outgoing{Box: "agent:ceo", Home: homeID, Letter: l}
				}
				if r, err := origin.Forward(ctx, out, false); err != nil || r[0].Code != proto.CodeOK {
					b.Errorf("%+v, %v", r, err)
				}
			}
		})
	}
	sending, stop := context.WithCancel(ctx)
	work.Go(func() {
		defer close(arrivals)
		for {
			m, err := lane.Next(sending)
			if err != nil {
				return
			}
			a, err := home.Arrive(originID, m, nil)
			if err != nil {
				b.Error(err)
				return
			}
			arrivals <- a
		}
	})
	released := 0
	for a := range arrivals {
		m, err := a.Wait(ctx)
		if err == nil {
			err = lane.Answer(ctx, m)
		}
		if err != nil || m.GetCode() != proto.CodeOK {
			b.Fatalf("%v, %v", m, err)
		}
		accepted := m.GetUpToNumber()
		for ; released < int(accepted)/batch; released++ {
			<-spool
		}
		if accepted == uint64(rounds*batch) {
			stop()
		}
	}
	work.Wait()
	b.StopTimer()
	b.ReportMetric(float64(rounds*batch)/b.Elapsed().Seconds(), "mails/s")
	stop()
}
