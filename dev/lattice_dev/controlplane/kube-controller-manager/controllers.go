package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	tokens "k8s.io/kubernetes/pkg/serviceaccount"
)

// The numbers of workers and the periods are the defaults of Kubernetes' command.
const (
	resyncPeriod        = 12 * time.Hour
	namespaceSyncPeriod = 5 * time.Minute
	discoveryPeriod     = 30 * time.Second
	serverTimeout       = 10 * time.Second
	collectorWorkers    = 20
	namespaceWorkers    = 10
	tokenWorkers        = 5
	signerWorkers       = 5
)

// loop runs until the context ends.
type loop func(context.Context)

// constructors has every controller that is built in, by the name that Kubernetes gives it.
var constructors = map[string]func(context.Context, *shared) ([]loop, error){
	"garbage-collector-controller":                 newGarbageCollector,
	"namespace-controller":                         newNamespaces,
	"serviceaccount-controller":                    newServiceAccounts,
	"serviceaccount-token-controller":              newServiceAccountTokens,
	"certificatesigningrequest-signing-controller": newSigner,
}

func known() []string {
	return slices.Sorted(maps.Keys(constructors))
}

// shared is what the controllers have in common: clients, and informers that several read.
type shared struct {
	options   *options
	root      clientbuilder.ControllerClientBuilder
	clients   clientbuilder.ControllerClientBuilder
	informers informers.SharedInformerFactory
	both      informerfactory.InformerFactory
	metadata  metadata.Interface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	started   chan struct{}
}

func newShared(ctx context.Context, o *options) (*shared, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.QPS, config.Burst = float32(o.qps), o.burst
	config = rest.AddUserAgent(config, "kube-controller-manager")
	made := &shared{options: o, root: clientbuilder.SimpleControllerClientBuilder{ClientConfig: config}, started: make(chan struct{})}
	client, err := made.root.Client("shared-informers")
	if err != nil {
		return nil, err
	}
	if err := waitForServer(ctx, client); err != nil {
		return nil, err
	}
	made.clients = made.root
	if o.ownCredentials {
		made.clients = clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(config), client.CoreV1(), metav1.NamespaceSystem)
	}
	if made.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, err
	}
	made.informers = informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod, informers.WithTransform(trim))
	byMetadata := metadatainformer.NewSharedInformerFactoryWithOptions(made.metadata, resyncPeriod, metadatainformer.WithTransform(trim))
	made.both = informerfactory.NewInformerFactory(made.informers, byMetadata)
	found, err := made.root.DiscoveryClient("controller-discovery")
	if err != nil {
		return nil, err
	}
	made.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	go wait.Until(made.mapper.Reset, discoveryPeriod, ctx.Done())
	return made, nil
}

// start lets the informers read, once every controller has said which it wants.
func (s *shared) start(ctx context.Context) {
	s.informers.Start(ctx.Done())
	s.both.Start(ctx.Done())
	close(s.started)
}

// trim keeps an object without what no controller reads.
func trim(object any) (any, error) {
	if found, err := meta.Accessor(object); err == nil && found.GetManagedFields() != nil {
		found.SetManagedFields(nil)
	}
	return object, nil
}

func waitForServer(ctx context.Context, client kubernetes.Interface) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, serverTimeout, true, func(ctx context.Context) (bool, error) {
		status := 0
		last = client.Discovery().RESTClient().Get().AbsPath("/healthz").Do(ctx).StatusCode(&status).Error()
		return last == nil && status == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("the API server is not healthy: %w", errors.Join(err, last))
	}
	return nil
}

func newGarbageCollector(ctx context.Context, s *shared) ([]loop, error) {
	const name = "generic-garbage-collector"
	client, err := s.clients.Client(name)
	if err != nil {
		return nil, err
	}
	discovered, err := s.clients.DiscoveryClient(name)
	if err != nil {
		return nil, err
	}
	config, err := s.clients.Config(name)
	if err != nil {
		return nil, err
	}
	config.QPS *= 2 // each deletion takes two requests
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	graph := garbagecollector.NewDependencyGraphBuilder(
		ctx, s.metadata, s.mapper, garbagecollector.DefaultIgnoredResources(), s.both, s.started,
	)
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, client, objects, s.mapper, graph)
	if err != nil {
		return nil, err
	}
	return []loop{
		func(ctx context.Context) { collector.Run(ctx, collectorWorkers, discoveryPeriod) },
		func(ctx context.Context) { collector.Sync(ctx, discovered, discoveryPeriod) },
	}, nil
}

func newNamespaces(ctx context.Context, s *shared) ([]loop, error) {
	config, err := s.clients.Config("namespace-controller")
	if err != nil {
		return nil, err
	}
	config.QPS *= 20 // emptying a namespace takes a request for each kind that there is
	config.Burst *= 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	made := namespace.NewNamespaceController(
		ctx, client, objects, client.Discovery().ServerPreferredNamespacedResources,
		s.informers.Core().V1().Namespaces(), namespaceSyncPeriod, v1.FinalizerKubernetes,
	)
	return []loop{func(ctx context.Context) { made.Run(ctx, namespaceWorkers) }}, nil
}

func newServiceAccounts(ctx context.Context, s *shared) ([]loop, error) {
	client, err := s.clients.Client("service-account-controller")
	if err != nil {
		return nil, err
	}
	core := s.informers.Core().V1()
	made, err := serviceaccount.NewServiceAccountsController(
		klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), client, serviceaccount.DefaultServiceAccountsControllerOptions(),
	)
	if err != nil {
		return nil, err
	}
	return []loop{func(ctx context.Context) { made.Run(ctx, 1) }}, nil
}

func newServiceAccountTokens(ctx context.Context, s *shared) ([]loop, error) {
	key, err := keyutil.PrivateKeyFromFile(s.options.serviceAccountKey)
	if err != nil {
		return nil, err
	}
	authority, err := s.rootAuthority()
	if err != nil {
		return nil, err
	}
	generator, err := tokens.JWTTokenGenerator(tokens.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}
	client, err := s.root.Client("tokens-controller")
	if err != nil {
		return nil, err
	}
	core := s.informers.Core().V1()
	made, err := serviceaccount.NewTokensController(
		klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: authority},
	)
	if err != nil {
		return nil, err
	}
	return []loop{func(ctx context.Context) { made.Run(ctx, tokenWorkers) }}, nil
}

func (s *shared) rootAuthority() ([]byte, error) {
	if s.options.rootCA == "" {
		config, err := s.root.Config("tokens-controller")
		if err != nil {
			return nil, err
		}
		return config.CAData, nil
	}
	found, err := os.ReadFile(s.options.rootCA)
	if err != nil {
		return nil, err
	}
	if _, err := certutil.ParseCertsPEM(found); err != nil {
		return nil, fmt.Errorf("--root-ca-file: %w", err)
	}
	return found, nil
}

func newSigner(ctx context.Context, s *shared) ([]loop, error) {
	client, err := s.clients.Client("certificate-controller")
	if err != nil {
		return nil, err
	}
	made, err := signer.NewKubeAPIServerClientCSRSigningController(
		ctx, client, s.informers.Certificates().V1().CertificateSigningRequests(),
		s.options.signingCertificate, s.options.signingKey, s.options.signingDuration,
	)
	if err != nil {
		return nil, err
	}
	return []loop{func(ctx context.Context) { made.Run(ctx, signerWorkers) }}, nil
}
