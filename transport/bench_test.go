package transport

import (
	"context"
	"sync"
	"testing"

	"github.com/balefire/balefire/proto"
)

// BenchmarkFrames measures frames of one KiB from Send to Ack between two hosts of this
// process, with a receiver that costs nothing.
func BenchmarkFrames(b *testing.B) {
	for _, network := range []string{"tcp", "quic"} {
		b.Run(network, func(b *testing.B) {
			listen := map[string][]string{"tcp": {"/ip4/127.0.0.1/tcp/0"}, "quic": {"/ip4/127.0.0.1/udp/0/quic-v1"}}[network]
			prepare := func(_ *testNode, cfg *Config) { cfg.Listen = listen }
			x, y := start(b, 1, prepare), start(b, 2, prepare)
			l := link(b, x, y)
			m := &proto.Message{Type: proto.TypeData, Id: "0198e0a0-0000-7000-8000-000000000000", Payload: make([]byte, 1300)}
			group := make([]*proto.Message, 64)
			for i := range group {
				group[i] = m
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			wg.Go(func() {
				for sent := 0; sent < b.N; {
					n := min(len(group), b.N-sent)
					if err := l.Send(ctx, group[:n]); err != nil {
						b.Error(err)
					}
					sent += n
				}
			})
			for acked := 0; acked < b.N; {
				a, err := l.Answers(ctx)
				if err != nil {
					b.Fatal(err)
				}
				acked = int(a.GetUpTo())
			}
			wg.Wait()
		})
	}
}
