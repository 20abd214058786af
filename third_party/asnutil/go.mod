module github.com/libp2p/go-libp2p-asn-util

go 1.26.0
