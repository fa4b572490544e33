// Search in a site that is opened from disk: browsers start no Worker from a file:// address, so an iframe stands in
// for it. A short form of https://github.com/squidfunk/iframe-worker (MIT licence, Martin Donath), which the theme
// would otherwise load from the network.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const send = "postMessage = (message) => parent.postMessage(message, '*');";
    const load = `importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
      const script = document.createElement("script");
      script.src = url;
      script.onload = resolve;
      document.body.appendChild(script);
    })), Promise.resolve());`;
    this.iframe = document.createElement("iframe");
    this.iframe.hidden = true;
    document.body.appendChild(this.iframe);
    const page = this.iframe.contentWindow.document;
    page.open();
    page.write(`<html><body><script>${send}${load}</script><script src="${url}"></script></body></html>`);
    page.close();
    this.ready = new Promise((resolve) => (this.iframe.contentWindow.onload = resolve));
    window.addEventListener("message", (event) => {
      if (event.source !== this.iframe.contentWindow) return;
      this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      if (this.onmessage) this.onmessage(event);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.iframe.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.iframe.remove();
  }
}

if (location.protocol === "file:") window.Worker = IFrameWorker;
