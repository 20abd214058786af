package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/wire"
)

func oneKiB(b *testing.B) []byte {
	b.Helper()
	doc, err := json.Marshal(wire.Request{Target: "here", Kind: "discard", Body: bytes.Repeat([]byte{0xa5}, 1024)})
	if err != nil {
		b.Fatal(err)
	}
	return doc
}

// BenchmarkSubmit measures a single task through the API server, on a node with its store in
// memory.
func BenchmarkSubmit(b *testing.B) {
	doc, h := oneKiB(b), New(newNode(b, nil), Config{}).Handler()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(discard{http.Header{}}, request(b, "/v1/tasks", jsonType, doc))
	}
}

// BenchmarkBatch measures a task in a batch of 1000: an operation is one task.
func BenchmarkBatch(b *testing.B) {
	doc := bytes.Repeat(append(oneKiB(b), '\n'), wire.MaxBatch)
	h := New(newNode(b, nil), Config{}).Handler()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%wire.MaxBatch == 0 {
			h.ServeHTTP(discard{http.Header{}}, request(b, "/v1/tasks/batch", "application/x-ndjson", doc))
		}
	}
}

func request(b *testing.B, path, contentType string, doc []byte) *http.Request {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, path, io.NopCloser(bytes.NewReader(doc)))
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = int64(len(doc))
	return r
}

// BenchmarkMailFrames measures mails of 1 KiB over one connection with frames, on a node with
// its ledger on disk: 64 batches of 16 are in flight, and each mail is sent, delivered and
// durably acknowledged. An operation is one mail. The garbage is that of both ends.
func BenchmarkMailFrames(b *testing.B) {
	const inFlight, batch = 64, 16
	dial, _ := serveMail(b, mailNode(b))
	sender, reader := &frames{t: b, c: dial(wire.MailFrames)}, &frames{t: b, c: dial(wire.MailFrames)}
	letter := letterOf(b, string(bytes.Repeat([]byte{0xa5}, 1024)), nil)
	send := sendFrame(1, "agent:ceo", slices.Repeat([][]byte{letter}, batch)...)
	batches := (b.N + batch - 1) / batch
	b.ReportAllocs()
	b.ResetTimer()
	reader.write(readFrame(1, "agent:ceo", 4*inFlight*batch))
	var work sync.WaitGroup
	sent := make(chan struct{}, inFlight)
	work.Go(func() {
		for range batches {
			sent <- struct{}{}
			if err := sender.c.Write(b.Context(), websocket.MessageBinary, send); err != nil {
				b.Error(err)
				return
			}
		}
	})
	work.Go(func() {
		var buf []byte
		var results []wire.FramedResult
		for n := 0; n < batches; {
			buf = sender.each(buf, func(x wire.MailFrame) {
				results, _ = x.Results(results[:0])
				if len(results) != batch || results[0].Code != "" {
					b.Errorf("%+v", results)
				}
				n++
				<-sent
			})
		}
	})
	var buf, msg []byte
	var given []wire.FramedDelivery
	var acks []wire.FramedSettlement
	for acked := 0; acked < batches*batch; {
		msg = msg[:0]
		buf = reader.each(buf, func(x wire.MailFrame) {
			if x.Op == wire.OpEnd {
				code, detail, _, _ := x.End()
				b.Fatalf("the session ended: %s %s", code, detail)
			}
			if x.Op != wire.OpDelivered {
				acked += int(x.Ref) // how many were acknowledged
				return
			}
			given, _ = x.Deliveries(given[:0])
			acks = acks[:0]
			for i := range given {
				acks = append(acks, wire.FramedSettlement{Op: wire.FrameAck, Lease: given[i].Lease})
			}
			msg = wire.AppendMailFrame(msg, wire.OpSettle, uint32(len(acks)), func(b []byte) []byte { return wire.AppendSettle(b, 1, acks) })
		})
		if len(msg) > 0 {
			if err := reader.c.Write(b.Context(), websocket.MessageBinary, msg); err != nil {
				b.Fatal(err)
			}
		}
	}
	work.Wait()
	b.ReportMetric(float64(batches*batch)/b.Elapsed().Seconds(), "mails/s")
}

// each reads a message into buf, and calls f with its frames.
func (f *frames) each(buf []byte, do func(wire.MailFrame)) []byte {
	_, r, err := f.c.Reader(context.Background())
	if err == nil {
		buf, err = readMessage(r, buf[:0])
	}
	if err != nil {
		f.t.Fatal(err)
	}
	for left := buf; len(left) > 0; {
		var x wire.MailFrame
		if x, left, err = wire.CutMailFrame(left); err != nil {
			f.t.Fatal(err)
		}
		do(x)
	}
	return buf
}

// BenchmarkMailDocuments is BenchmarkMailFrames with JSON, and a client that decodes nothing
// but the leases.
func BenchmarkMailDocuments(b *testing.B) {
	const inFlight, batch = 64, 16
	dial, _ := serveMail(b, mailNode(b))
	sender, reader := dial(wire.MailDocuments), dial(wire.MailDocuments)
	mail, err := json.Marshal(wire.Mail{To: "agent:ceo", Body: bytes.Repeat([]byte{0xa5}, 1024)})
	if err != nil {
		b.Fatal(err)
	}
	send := []byte(`{"op":"send","ref":1,"mails":[` + string(bytes.Join(slices.Repeat([][]byte{mail}, batch), []byte(","))) + `]}`)
	batches := (b.N + batch - 1) / batch
	b.ReportAllocs()
	b.ResetTimer()
	write := func(c *websocket.Conn, msg []byte) {
		if err := c.Write(b.Context(), websocket.MessageText, msg); err != nil {
			b.Error(err)
		}
	}
	write(reader, fmt.Appendf(nil, `{"op":"read","session":1,"box":"agent:ceo","credit":%d}`, 4*inFlight*batch))
	var work sync.WaitGroup
	sent := make(chan struct{}, inFlight)
	work.Go(func() {
		for range batches {
			sent <- struct{}{}
			write(sender, send)
		}
	})
	read := func(c *websocket.Conn, buf []byte) []byte {
		_, r, err := c.Reader(context.Background())
		if err == nil {
			buf, err = readMessage(r, buf[:0])
		}
		if err != nil {
			b.Error(err)
		}
		return buf
	}
	work.Go(func() {
		var buf []byte
		for range batches {
			if buf = read(sender, buf); bytes.Contains(buf, []byte("problem")) {
				b.Errorf("%s", buf)
			}
			<-sent
		}
	})
	var buf, msg []byte
	for acked := 0; acked < batches*batch; {
		buf = read(reader, buf)
		if left, settled := bytes.CutPrefix(buf, []byte(`{"op":"settled","ref":`)); settled {
			n, _ := strconv.Atoi(string(left[:bytes.IndexByte(left, '}')]))
			acked += n
			continue
		}
		leases := bytes.Split(buf, []byte(`"lease":"`))[1:]
		msg = append(msg[:0], `{"op":"settle","session":1,"ref":`...)
		msg = append(strconv.AppendInt(msg, int64(len(leases)), 10), `,"ack":[`...)
		for i, l := range leases {
			if i > 0 {
				msg = append(msg, ',')
			}
			msg = append(append(append(msg, '"'), l[:bytes.IndexByte(l, '"')]...), '"')
		}
		write(reader, append(msg, "]}"...))
	}
	work.Wait()
	b.ReportMetric(float64(batches*batch)/b.Elapsed().Seconds(), "mails/s")
}
