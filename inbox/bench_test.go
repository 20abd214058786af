package inbox

import (
	"context"
	"strings"
	"testing"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// BenchmarkAccept measures accepting tasks of 1 KiB, in groups of 256, with a store in
// memory.
func BenchmarkAccept(b *testing.B) {
	_, spec := scripted(succeed)
	f := newFixture(b, Config{Clock: clock.System(), MaxTasks: 1 << 30, MaxBytes: 1 << 50, MaxKept: 1 << 30}, spec)
	defer f.close()
	const group = 256
	as := make([]Arrival, group)
	for i := range as {
		as[i] = f.task(withBody(strings.Repeat("x", 1024)))
	}
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range as {
			n++
			as[i].Header.Seq.Counter = n
			as[i].Header.ID = proto.NewTaskID(f.cfg.Clock.Now())
		}
		for _, v := range f.in.Accept(context.Background(), as) {
			if !v.Accepted() {
				b.Fatal(v)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/task")
}

// BenchmarkRun measures a task from its arrival to its result, with a handler that does
// nothing and a store in memory.
func BenchmarkRun(b *testing.B) {
	done := make(chan struct{}, 1024)
	_, spec := scripted(nil)
	spec.Handler = handlerFunc(succeed)
	f := newFixture(b, Config{Clock: clock.System(), OnChange: func(_ proto.TaskID, rec *proto.Record) {
		if rec.State.Terminal() {
			done <- struct{}{}
		}
	}}, spec)
	defer f.close()
	f.run()
	const group = 256
	as := make([]Arrival, group)
	for i := range as {
		as[i] = f.task(withBody(strings.Repeat("x", 1024)))
	}
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for i := range as {
			n++
			as[i].Header.Seq.Counter = n
			as[i].Header.ID = proto.NewTaskID(f.cfg.Clock.Now())
			as[i].Envelope = &proto.Envelope{Header: as[i].Header.Append(nil), Body: as[i].Envelope.Body}
		}
		f.in.Accept(context.Background(), as)
		for range as {
			<-done
		}
		f.in.Settle(home, as[group-1].Header.Seq)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/task")
}
