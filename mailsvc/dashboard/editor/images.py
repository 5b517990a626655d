"""Images for broadcasts: uploading, listing and deleting them. They are served elsewhere (http/resources/tracking/images)."""

from __future__ import annotations

from functools import partial

import attrs
import orjson

from mailsvc.broadcasts.images import LARGEST, ImageReader, Refused
from mailsvc.dashboard import uploads
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, image_csp
from mailsvc.http.resources.tracking.images import path_of
from mailsvc.store.broadcasts.images import Images
from mailsvc.store.paging import Page

IMAGES = f"{HOME}/images"
JSON = "application/json"
SHOWN = 24  # on a page


@attrs.define(eq=False)
class ImagePages:
    """`origin`: scheme and host of images. `most`: bytes of all images of an account."""

    app = section_app()
    context: PageContext
    images: Images
    reader: ImageReader
    origin: str
    most: int

    @page(app, IMAGES, access="change_audience")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, error: str = "") -> bytes:
        after = request.uuid(request.query("after"), "image") if request.query("after") else None
        found, more = await self.images.list(request.account_id, Page(SHOWN, after))
        shown = request.render(
            "editor/images.html", status, error=error, largest=LARGEST, most=self.most, used=await self.images.used(request.account_id),
            images=[(each, self.origin + path_of(request.account_id, each.id, each.kind)) for each in found],
            older=f"{IMAGES}?after={found[-1].id}" if more else None, first=after is None,
        )  # fmt: skip
        request.set_header("Content-Security-Policy", image_csp(self.origin))
        return shown

    @page(app, IMAGES, "POST", access="change_audience", form=uploads.form)
    async def upload(self, request: PageRequest) -> bytes:
        """Called by the editor's script, which gets JSON, and by the form on the page of images."""
        by_script = request.header("accept") == JSON
        try:
            url = await self._stored(request)
        except Refused as refused:
            status = 503 if refused.later else 422
            if by_script:
                return request.send(orjson.dumps({"errors": {"file": refused.sentence}}), JSON, status)
            return await self._listed(request, status, refused.sentence)
        return request.send(orjson.dumps({"url": url}), JSON) if by_script else request.redirect(IMAGES)

    async def _stored(self, request: PageRequest) -> str:
        """The address of the uploaded image. Raises Refused."""
        part, content = request.file, request.http.content
        data = b""
        async with self.reader.turn(request.account_id):
            if part is not None and content is not None:
                data = await uploads.in_thread(request, partial(part.read, content, LARGEST + 1))
            picture = await self.reader.read(data)
        line = request.audit_entry("image uploaded", f"{picture.width} × {picture.height} pixels, {len(picture.content)} bytes")
        added = await self.images.add(request.account_id, picture, self.most, [line])
        if added is None:
            raise Refused(f"Your images have reached the limit of {self.most >> 20} MB. Delete some of them under Images, then retry.")
        return self.origin + path_of(request.account_id, added, picture.kind)

    @page(app, f"{IMAGES}/<text>/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        image_id = request.uuid(text, "image")
        if not await self.images.delete(request.account_id, image_id, [request.audit_entry("image deleted", str(image_id))]):
            raise not_found("image")
        return request.redirect(IMAGES)
